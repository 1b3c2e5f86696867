"""The table of malformed requests against a whole worker."""

from __future__ import annotations

import grpc
import numpy as np
import pytest

from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceStub
from service.pb.inference import grpc_service_pb2 as pb
from service.pb.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from tests.process import worker_process
from tests.service.rpc.malformed import CASES, as_replay, assert_refused, spoilt

pytestmark = pytest.mark.e2e

TOKENS = np.arange(3 * 17, dtype=np.int64).reshape(3, 17)
GOOD = pb.ModelInferRequest(
    model_name="encoder",
    inputs=[pb.ModelInferRequest.InferInputTensor(name="tokens", datatype="INT64", shape=TOKENS.shape)],
    raw_input_contents=[TOKENS.tobytes()],
)


async def test_each_is_refused_and_the_next_good_request_is_right() -> None:
    """By ModelInfer, and by Replay where it can be said there."""
    with worker_process() as addresses:
        async with grpc.aio.insecure_channel(addresses.inference) as channel:
            inference, replay = GRPCInferenceServiceStub(channel), ReplayServiceStub(channel)

            async def embedding() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
                reply = await inference.ModelInfer(GOOD)
                return np.frombuffer(reply.raw_output_contents[0], np.float32)

            expected = await embedding()
            for case in CASES:
                request = spoilt(case, GOOD)
                await assert_refused(inference.ModelInfer(request), case, GOOD)
                if ours := as_replay(request):
                    await assert_refused(replay.Replay(ours), case, GOOD)
                np.testing.assert_allclose(await embedding(), expected, atol=1e-4, err_msg=case.name)
