"""Triton's official client against a worker, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2

from service.pb.graphcache.v1 import replay_pb2
from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceStub
from service.pb.inference import grpc_service_pb2, model_config_pb2
from tests.e2e import triton
from tests.process import worker_process

pytestmark = pytest.mark.e2e

SCRIPT = Path(__file__).with_name("triton_client.py")


def client(what: str, argument: str) -> Any:
    """What the official client found."""
    done = subprocess.run([triton.python(), SCRIPT, what, argument], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_our_protocol_is_the_official_one_on_the_wire(tmp_path: Path) -> None:
    """Every message, field, enum value and call that we have is there with the same number, type and cardinality."""
    ours = descriptor_pb2.FileDescriptorSet()
    for module in (grpc_service_pb2, model_config_pb2):
        module.DESCRIPTOR.CopyToProto(ours.file.add())
    path = tmp_path / "ours.bin"
    path.write_bytes(ours.SerializeToString())
    found = client("compare", str(path))
    assert found["different"] == []
    assert found["compared"] > 100


def test_the_official_client_does_all_that_it_has_for_us() -> None:
    """Readiness, metadata, unary, asynchronous and stream inference, several inputs and outputs, errors."""
    with worker_process() as addresses:
        found = client("session", addresses.inference)
        with grpc.insecure_channel(addresses.inference) as channel:
            tokens = np.arange(3 * 17, dtype=np.int64).reshape(3, 17) % 1000
            tensor = replay_pb2.Tensor(name="tokens", datatype="INT64", shape=tokens.shape, data=tokens.tobytes())
            ours = ReplayServiceStub(channel).Replay(replay_pb2.ReplayRequest(model="encoder", inputs=[tensor]))
    assert found["live"]
    assert found["ready"]
    assert found["model_ready"]
    assert found["server"]["name"] == "graphcache"
    assert [one["name"] for one in found["metadata"]["inputs"]] == ["tokens"]
    assert found["metadata"]["outputs"] == [{"name": "embedding", "datatype": "FP32", "shape": ["-1", "256"]}]
    assert found["config"]["max_batch_size"] > 1
    assert "encoder" in {one["name"] for one in found["index"]}
    embedding = np.frombuffer(ours.outputs[0].data, np.float32).reshape(3, 256)
    np.testing.assert_allclose(found["embedding"], embedding, atol=1e-4)
    assert found["id"] == "one"
    assert found["parameters"]["path"] in {"eager", "replay"}
    assert found["async_equals_sync"]
    assert found["logits"] == [2, 1024]
    assert found["next_token"] == found["argmax"]
    assert found["streamed"] == {str(number): [1, 256] for number in range(1, 9)}
    assert ["nonsense" in error for error in found["stream_errors"]] == [True]
    assert found["unknown_model"] == "StatusCode.NOT_FOUND"
    served = found["statistics"]["inference_stats"]["success"]
    assert int(served["count"]) == 10  # one, eight on the stream, one asynchronous
    assert int(served["ns"]) > 0
