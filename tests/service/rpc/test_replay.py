"""ReplayService, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from enum import StrEnum
from time import monotonic

import grpc
import numpy as np
import pytest
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from cachepolicy.reasons import FallbackReason, RefusalReason
from service.errors import Overloaded
from service.messages import GraphMode, Path
from service.pb.graphcache.v1 import replay_pb2 as pb
from tests.service.rpc.double import Node, listening, read


def request(rows: int = 2, request_id: str = "") -> pb.ReplayRequest:
    """A good request; its values tell its rows."""
    tokens = np.full((rows, 8), rows, dtype=np.int64)
    scale = np.full((rows, 4), rows, dtype=np.float32)
    return pb.ReplayRequest(
        model="echo",
        id=request_id,
        inputs=[
            pb.Tensor(name="tokens", datatype="INT64", shape=tokens.shape, data=tokens.tobytes()),
            pb.Tensor(name="scale", datatype="FP32", shape=scale.shape, data=scale.tobytes()),
        ],
    )


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """An echoing worker behind real sockets."""
    async with listening() as node:
        yield node


@pytest.mark.parametrize(
    ("ours", "wire", "prefix"),
    [
        (FallbackReason, pb.FallbackReason, "FALLBACK_REASON"),
        (RefusalReason, pb.RefusalReason, "REFUSAL_REASON"),
        (Path, pb.Path, "PATH"),
        (GraphMode, pb.GraphMode, "GRAPH_MODE"),
    ],
)
def test_enums_of_the_protocol_are_those_of_the_registry(ours: type[StrEnum], wire: EnumTypeWrapper, prefix: str) -> None:
    """Same names on both sides, and 0 is nobody's."""
    assert set(wire.keys()) == {f"{prefix}_{member.name}" for member in ours} | {f"{prefix}_UNSPECIFIED"}
    assert wire.Value(f"{prefix}_UNSPECIFIED") == 0


async def test_reply_tells_how_it_was_served(node: Node) -> None:
    """Every field of the outcome arrives."""
    asked = request(3, "a")
    reply = await node.replay.Replay(asked)
    assert (reply.model, reply.version, reply.id) == ("echo", "1", "a")
    assert [(out.name, list(out.shape), out.data) for out in reply.outputs] == [(t.name, list(t.shape), t.data) for t in asked.inputs]
    outcome = reply.outcome
    assert outcome.path == pb.PATH_EAGER
    assert outcome.fallback_reason == pb.FALLBACK_REASON_REFUSED
    assert outcome.refusal_reason == pb.REFUSAL_REASON_SYNC
    assert outcome.detail == "sync: aten._local_scalar_dense"
    assert dict(outcome.bucket) == {"batch": 4, "seq": 8}
    assert (outcome.padding_ratio, outcome.batch_rows, outcome.parts) == (0.5, 3, 2)
    assert (outcome.queue_s, outcome.execute_s, outcome.graph_key) == (0.25, 0.5, "0123456789abcdef")
    assert dict(outcome.variant) == {"adapter": "legal"}
    assert (outcome.mode.mode, outcome.mode.origin, outcome.mode.since) == (pb.GRAPH_MODE_AUTO, "configuration", 1000.0)
    assert not outcome.mode.HasField("until")


async def test_timeout_is_a_deadline_from_arrival(node: Node) -> None:
    """The earlier one of timeout and the call's deadline; a timeout of 0 is over on arrival."""
    asked = request()
    asked.timeout_us = 2_000_000
    await node.replay.Replay(asked, timeout=60)
    asked.timeout_us = 0
    await node.replay.Replay(asked)
    first, second = (seen.deadline for seen in node.worker.seen)
    assert first is not None
    assert second is not None
    assert first - 5 < monotonic() < first + 5
    assert second <= monotonic()


async def test_stream_answers_as_requests_finish(node: Node) -> None:
    """One that waits does not hold back those behind it."""
    node.worker.gate = asyncio.Event()
    stream = node.replay.ReplayStream(None)
    await stream.write(pb.ReplayStreamRequest(request=request(1, "waits")))
    await node.worker.until(1)
    gate, node.worker.gate = node.worker.gate, None
    await stream.write(pb.ReplayStreamRequest(request=request(2, "overtakes")))
    first = await read(stream)
    gate.set()
    second = await read(stream)
    await stream.done_writing()
    assert [first.id, second.id] == ["overtakes", "waits"]
    assert second.response.outputs[0].data == request(1).inputs[0].data


async def test_stream_error_has_the_status_of_the_unary_call(node: Node) -> None:
    """Code, message and when to come back; the stream goes on."""
    stream = node.replay.ReplayStream(None)
    node.worker.error = Overloaded("full", retry_after_s=0.5)
    await stream.write(pb.ReplayStreamRequest(request=request(1, "refused")))
    reply = await read(stream)
    assert reply.id == "refused"
    assert (reply.error.code, reply.error.message) == (grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], "full")
    assert reply.error.retry_after_ms == 500
    node.worker.error = None
    await stream.write(pb.ReplayStreamRequest(request=request(1, "fine")))
    assert (await read(stream)).response.id == "fine"
    await stream.write(pb.ReplayStreamRequest())
    assert (await read(stream)).error.code == grpc.StatusCode.NOT_FOUND.value[0]
    await stream.done_writing()
    assert await stream.code() is grpc.StatusCode.OK


async def test_cancelled_stream_cancels_all_its_requests(node: Node) -> None:
    """A client that goes away leaves no work behind."""
    node.worker.gate = asyncio.Event()
    stream = node.replay.ReplayStream(None)
    for number in range(5):
        await stream.write(pb.ReplayStreamRequest(request=request(1, str(number))))
    await node.worker.until(5)
    stream.cancel()
    await node.worker.until(0)
    assert node.worker.cancelled == 5


async def test_one_stream_carries_many_requests(node: Node) -> None:
    """Far more than may be in flight at a time; each gets its own values."""
    count = 2000
    rows_of = {str(number): 1 + number % 8 for number in range(count)}

    async def requests() -> AsyncIterator[pb.ReplayStreamRequest]:
        for name, rows in rows_of.items():
            yield pb.ReplayStreamRequest(request=request(rows, name))

    answered = set()
    async for reply in node.replay.ReplayStream(requests()):
        assert list(reply.response.outputs[0].shape) == [rows_of[reply.id], 8]
        assert reply.response.outputs[0].data == request(rows_of[reply.id]).inputs[0].data
        answered.add(reply.id)
    assert answered == set(rows_of)


async def test_description_is_enough_to_make_up_a_request(node: Node) -> None:
    """Axes with their maxima, inputs by axis names with their ranges, variants."""
    found = await node.replay.DescribeModel(pb.DescribeModelRequest(model="echo"))
    assert (found.model, found.version, found.batch_axis, found.phase) == ("echo", "1", "batch", "any")
    assert [(t.name, t.datatype, list(t.shape)) for t in found.inputs] == [
        ("tokens", "INT64", ["batch", "seq"]),
        ("scale", "FP32", ["batch", "4"]),
    ]
    assert (found.inputs[0].range.low, found.inputs[0].range.high) == (0, 29999)
    assert not found.inputs[1].HasField("range")
    assert [(axis.name, axis.max) for axis in found.axes] == [("batch", 8), ("seq", 16)]
    assert [(v.name, list(v.values)) for v in found.variants] == [("adapter", ["base", "legal"])]
