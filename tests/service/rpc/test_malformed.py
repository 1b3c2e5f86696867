"""Every malformed request is refused with its status and the input's name, and the next good one is right."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from contextlib import suppress

import numpy as np
import pytest

from service.errors import BadInput
from service.pb.inference import grpc_service_pb2 as pb
from service.rpc.inference import infer_request
from tests.service.rpc.double import SPEC, Node, listening
from tests.service.rpc.malformed import CASES, Case, as_replay, assert_refused, spoilt

TOKENS = np.arange(24, dtype=np.int64).reshape(3, 8)
SCALE = np.arange(12, dtype=np.float32).reshape(3, 4)
GOOD = pb.ModelInferRequest(
    model_name="echo",
    inputs=[
        pb.ModelInferRequest.InferInputTensor(name="tokens", datatype="INT64", shape=TOKENS.shape),
        pb.ModelInferRequest.InferInputTensor(name="scale", datatype="FP32", shape=SCALE.shape),
    ],
    raw_input_contents=[TOKENS.tobytes(), SCALE.tobytes()],
)


def _widen(request: pb.ModelInferRequest, seq: int) -> None:
    request.inputs[0].shape[1] = seq
    request.raw_input_contents[0] = bytes(3 * seq * 8)


def _drop_a_row(request: pb.ModelInferRequest) -> None:
    request.inputs[1].shape[0] = 2
    request.raw_input_contents[1] = SCALE[:2].tobytes()


OWN_CASES = (
    Case("axis_above_its_maximum", lambda r: _widen(r, 17), "tokens"),
    Case("axes_disagree", _drop_a_row, "scale"),
    Case("value_out_of_range", lambda r: r.raw_input_contents.__setitem__(0, np.full((3, 8), 30000).tobytes()), "tokens"),
)
ALL = (*CASES, *OWN_CASES)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """An echoing worker behind real sockets."""
    async with listening() as node:
        yield node


async def _good_request_is_right(node: Node) -> None:
    reply = await node.inference.ModelInfer(GOOD)
    assert list(reply.raw_output_contents) == list(GOOD.raw_input_contents)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
async def test_malformed_infer_is_refused(node: Node, case: Case) -> None:
    """ModelInfer answers the named status and goes on."""
    await assert_refused(node.inference.ModelInfer(spoilt(case, GOOD)), case, GOOD)
    await _good_request_is_right(node)


@pytest.mark.parametrize("case", [case for case in ALL if as_replay(spoilt(case, GOOD))], ids=lambda case: case.name)
async def test_malformed_replay_is_refused(node: Node, case: Case) -> None:
    """Replay answers the named status and goes on."""
    request = as_replay(spoilt(case, GOOD))
    assert request is not None
    await assert_refused(node.replay.Replay(request), case, GOOD)
    await _good_request_is_right(node)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_refusing_takes_no_memory_for_what_is_claimed(case: Case) -> None:
    """From the message to the refusal, no more memory is taken than the message itself has."""
    request = spoilt(case, GOOD)
    tracemalloc.start()
    try:
        with suppress(BadInput):  # an unknown model or output is for the worker to find
            SPEC.check(infer_request(request, None).inputs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 500_000
