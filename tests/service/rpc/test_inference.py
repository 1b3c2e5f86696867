"""The Open Inference Protocol, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from time import monotonic
from typing import Any

import grpc
import numpy as np
import pytest

from service.errors import ModelRaised, Overloaded
from service.pb.inference import grpc_service_pb2 as pb
from service.pb.inference import model_config_pb2 as config_pb
from service.rpc.inference import model_config
from tests.service.rpc.double import SPEC, Node, listening

Message = pb.ModelInferRequest


def request(rows: int = 2, request_id: str = "") -> Message:
    """A good request; its values tell rows and id apart."""
    tokens = np.full((rows, 8), len(request_id), dtype=np.int64)
    scale = np.full((rows, 4), rows, dtype=np.float32)
    return Message(
        model_name="echo",
        id=request_id,
        inputs=[
            Message.InferInputTensor(name="tokens", datatype="INT64", shape=tokens.shape),
            Message.InferInputTensor(name="scale", datatype="FP32", shape=scale.shape),
        ],
        raw_input_contents=[tokens.tobytes(), scale.tobytes()],
    )


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """An echoing worker behind real sockets."""
    async with listening() as node:
        yield node


async def test_reply_has_values_id_and_how_it_was_served(node: Node) -> None:
    """Values come raw, and the parameters name path, reason and bucket."""
    asked = request(3, "seventeen")
    reply = await node.inference.ModelInfer(asked)
    assert (reply.model_name, reply.model_version, reply.id) == ("echo", "1", "seventeen")
    assert [(out.name, out.datatype, list(out.shape)) for out in reply.outputs] == [("tokens", "INT64", [3, 8]), ("scale", "FP32", [3, 4])]
    assert list(reply.raw_output_contents) == list(asked.raw_input_contents)
    assert {name: value.string_param for name, value in reply.parameters.items()} == {
        "path": "eager",
        "fallback_reason": "refused",
        "bucket": "batch=4,seq=8",
    }


async def test_request_reaches_the_worker_whole(node: Node) -> None:
    """Version, parameters, wanted outputs, id and deadline; parameters that are the protocol's own are not the model's."""
    asked = request(2, "abc")
    asked.model_version = "1"
    asked.outputs.add(name="scale")
    asked.parameters["adapter"].string_param = "legal"
    asked.parameters["priority"].uint64_param = 3
    asked.parameters["sequence_start"].bool_param = True
    asked.parameters["triton_custom"].string_param = "x"
    asked.parameters["adaptor"].string_param = "base"
    asked.parameters["timeout"].int64_param = 5_000_000
    before = monotonic()
    await node.inference.ModelInfer(asked, timeout=60)
    seen = node.worker.seen[0]
    assert (seen.model, seen.version, seen.request_id, seen.outputs) == ("echo", "1", "abc", ("scale",))
    assert seen.parameters == {"adapter": "legal", "adaptor": "base"}
    assert seen.deadline is not None
    assert before + 4 < seen.deadline < before + 30


async def test_a_sequence_is_refused(node: Node) -> None:
    """Its requests would be answered each from no state; 0 is what clients send for none."""
    asked = request(1)
    asked.parameters["sequence_id"].int64_param = 0
    await node.inference.ModelInfer(asked)
    asked.parameters["sequence_id"].int64_param = 7
    with pytest.raises(grpc.aio.AioRpcError, match="parameter 'sequence_id': sequences are not supported") as refused:
        await node.inference.ModelInfer(asked)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("seconds", [None, 30.0])
async def test_the_calls_deadline_is_the_requests(node: Node, seconds: float | None) -> None:
    """A call with a deadline sets the request's; one without sets none."""
    before = monotonic()
    await node.inference.ModelInfer(request(), timeout=seconds)
    deadline = node.worker.seen[0].deadline
    assert (deadline is None) == (seconds is None)
    assert deadline is None or seconds is None or before + seconds - 5 < deadline < before + seconds + 5


async def test_typed_contents_give_the_same_values(node: Node) -> None:
    """The slow path means the same."""
    asked = request(1)
    typed = request(1)
    del typed.raw_input_contents[:]
    typed.inputs[0].contents.int64_contents.extend(np.frombuffer(asked.raw_input_contents[0], np.int64).tolist())
    typed.inputs[1].contents.fp32_contents.extend(np.frombuffer(asked.raw_input_contents[1], np.float32).tolist())
    reply = await node.inference.ModelInfer(typed)
    assert list(reply.raw_output_contents) == list(asked.raw_input_contents)


async def test_a_models_error_is_internal_and_the_next_request_is_fine(node: Node) -> None:
    """With the exception's type."""
    node.worker.error = ModelRaised(IndexError("out of range"))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await node.inference.ModelInfer(request())
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert failed.value.details() == "IndexError: out of range"
    node.worker.error = None
    await node.inference.ModelInfer(request())


async def test_overload_tells_when_to_come_back(node: Node) -> None:
    """As trailing metadata, where retrying clients look for it."""
    node.worker.error = Overloaded("full", retry_after_s=0.25)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await node.inference.ModelInfer(request())
    assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailers: Any = failed.value.trailing_metadata()
    assert ("grpc-retry-pushback-ms", "250") in list(trailers)


async def test_cancelling_the_call_cancels_the_request(node: Node) -> None:
    """The worker's `infer` is cancelled, so that what waits never runs."""
    node.worker.gate = asyncio.Event()
    call = node.inference.ModelInfer(request())
    await node.worker.until(1)
    call.cancel()
    await node.worker.until(0)
    assert node.worker.cancelled == 1


async def test_passing_the_deadline_cancels_the_request(node: Node) -> None:
    """The client sees DEADLINE_EXCEEDED."""
    node.worker.gate = asyncio.Event()
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await node.inference.ModelInfer(request(), timeout=0.05)
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await node.worker.until(0)
    assert node.worker.cancelled == 1


async def test_stream_answers_out_of_order_and_survives_a_bad_message(node: Node) -> None:
    """Replies carry ids; an error is a reply of its own."""
    bad = request(1, "bad")
    bad.inputs[0].name = "nonsense"
    replies = {}

    def requests() -> Iterator[Message]:
        yield request(1, "first")
        yield bad
        yield request(3, "third")

    async for reply in node.inference.ModelStreamInfer(requests()):
        replies[reply.infer_response.id] = reply
    assert set(replies) == {"first", "bad", "third"}
    assert "nonsense" in replies["bad"].error_message
    assert not replies["bad"].infer_response.raw_output_contents
    for name, rows in (("first", 1), ("third", 3)):
        assert replies[name].error_message == ""
        assert list(replies[name].infer_response.raw_output_contents) == list(request(rows, name).raw_input_contents)


async def test_stream_marks_the_final_response_where_it_is_wanted(node: Node) -> None:
    """Clients of decoupled models count on it; others see no such parameter."""
    wants = request(1, "wants")
    wants.parameters["triton_enable_empty_final_response"].bool_param = True
    marked = {}
    async for reply in node.inference.ModelStreamInfer(iter([wants, request(1, "not")])):
        marked[reply.infer_response.id] = reply.infer_response.parameters.get("triton_final_response")
    assert marked["wants"] is not None
    assert marked["wants"].bool_param is True
    assert marked["not"] is None


async def test_readiness_follows_the_health_state(node: Node) -> None:
    """Live always; ready until the drain."""
    assert (await node.inference.ServerLive(pb.ServerLiveRequest())).live
    assert (await node.inference.ServerReady(pb.ServerReadyRequest())).ready
    node.health.drain()
    assert (await node.inference.ServerLive(pb.ServerLiveRequest())).live
    assert not (await node.inference.ServerReady(pb.ServerReadyRequest())).ready


@pytest.mark.parametrize(
    ("name", "version", "ready"), [("echo", "", True), ("echo", "1", True), ("echo", "2", False), ("broken", "", False)]
)
async def test_model_ready_tells_versions_apart(node: Node, name: str, version: str, ready: bool) -> None:
    """Any version where none is named."""
    assert (await node.inference.ModelReady(pb.ModelReadyRequest(name=name, version=version))).ready is ready


async def test_model_ready_of_an_unknown_model_is_not_found(node: Node) -> None:
    """A misspelt name does not look like a model that is still loading."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await node.inference.ModelReady(pb.ModelReadyRequest(name="ecko"))
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND


async def test_metadata_gives_names_datatypes_and_open_sizes(node: Node) -> None:
    """-1 where requests choose."""
    server = await node.inference.ServerMetadata(pb.ServerMetadataRequest())
    assert server.name == "graphcache"
    assert "statistics" in server.extensions
    model = await node.inference.ModelMetadata(pb.ModelMetadataRequest(name="echo"))
    assert list(model.versions) == ["1"]
    assert [(t.name, t.datatype, list(t.shape)) for t in model.inputs] == [("tokens", "INT64", [-1, -1]), ("scale", "FP32", [-1, 4])]
    assert [(t.name, t.datatype, list(t.shape)) for t in model.outputs] == [("tokens", "INT64", [-1, -1]), ("scale", "FP32", [-1, 4])]


async def test_config_leaves_the_batch_dimension_out(node: Node) -> None:
    """As the protocol has it where max_batch_size is not 0; merging is announced as dynamic batching."""
    config = (await node.inference.ModelConfig(pb.ModelConfigRequest(name="echo"))).config
    assert (config.name, config.max_batch_size) == ("echo", 8)
    assert [(t.name, t.data_type, list(t.dims)) for t in config.input] == [
        ("tokens", config_pb.TYPE_INT64, [-1]),
        ("scale", config_pb.TYPE_FP32, [4]),
    ]
    assert config.HasField("dynamic_batching")
    assert config.dynamic_batching.max_queue_delay_microseconds == 2000
    assert not config.model_transaction_policy.decoupled


def test_config_keeps_all_dimensions_where_a_tensor_has_no_batch() -> None:
    """A model with one unbatched output is no batching model to the protocol."""
    output = SPEC.outputs[0]
    spec = type(SPEC)(SPEC.name, SPEC.version, SPEC.inputs, (type(output)("sum", output.datatype, (1,)),), SPEC.axes)
    config = model_config(spec)
    assert config.max_batch_size == 0
    assert [list(t.dims) for t in config.input] == [[-1, -1], [-1, 4]]
    assert not config.HasField("dynamic_batching")


async def test_statistics_are_the_workers_counters(node: Node) -> None:
    """Counts and sums in the protocol's places."""
    (stats,) = (await node.inference.ModelStatistics(pb.ModelStatisticsRequest(name="echo"))).model_stats
    assert (stats.inference_count, stats.execution_count, stats.last_inference) == (30, 10, 5)
    assert (stats.inference_stats.success.count, stats.inference_stats.success.ns) == (12, 1200)
    assert (stats.inference_stats.fail.count, stats.inference_stats.fail.ns) == (1, 10)
    assert stats.inference_stats.queue.ns == 300
    assert stats.inference_stats.compute_infer.ns == 500
    assert [(one.batch_size, one.compute_infer.count, one.compute_infer.ns) for one in stats.batch_stats] == [(4, 7, 700), (2, 3, 300)]


async def test_repository_index_lists_what_is_not_ready_too(node: Node) -> None:
    """With the reason; `ready` filters."""
    index = await node.inference.RepositoryIndex(pb.RepositoryIndexRequest())
    assert [(m.name, m.version, m.state, m.reason) for m in index.models] == [
        ("echo", "1", "READY", ""),
        ("echo", "2", "LOADING", ""),
        ("broken", "1", "UNAVAILABLE", "no such file"),
    ]
    ready = await node.inference.RepositoryIndex(pb.RepositoryIndexRequest(ready=True))
    assert [m.name for m in ready.models] == ["echo"]


async def test_loading_here_points_to_the_admin_port(node: Node) -> None:
    """UNIMPLEMENTED, naming the call that does it."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await node.inference.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="echo"))
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "AdminService/LoadModel" in (failed.value.details() or "")
