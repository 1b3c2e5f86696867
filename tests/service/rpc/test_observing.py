"""Looking at a worker over real sockets: its status, and its decisions as they fall."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from cachepolicy.buckets import Bucket
from cachepolicy.keys import GraphKey, Signature
from cachepolicy.reasons import FallbackReason
from service.pb.graphcache.v1 import admin_pb2 as pb
from service.pb.graphcache.v1 import replay_pb2
from service.rpc.observing import WATCHERS
from service.snapshot import Decision, Happening
from tests.service.rpc.double import Node, listening

KEY = GraphKey(Signature("e", "p", "echo:1@1"), Bucket.of(batch=4, seq=8))


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """A journal behind a real socket."""
    async with listening() as node:
        yield node


def note(node: Node, request_id: str, reason: FallbackReason | None = None, detail: str = "", model: str = "echo") -> None:
    node.observed.journal.decided(
        Decision(
            1000.0,
            model,
            "1",
            request_id,
            "trace" + request_id,
            {"batch": 3},
            "eager" if reason else "replay",
            reason,
            detail,
            bucket=Bucket.of(batch=4),
            queue_s=0.25,
            execute_s=0.5,
            total_s=1.0,
        )
    )


async def read(stream: grpc.aio.UnaryStreamCall[pb.WatchDecisionsRequest, pb.WatchDecisionsResponse]) -> pb.WatchDecisionsResponse:
    message = await stream.read()
    assert isinstance(message, pb.WatchDecisionsResponse)
    return message


async def until_watched(node: Node, streams: int) -> None:
    while node.servers._watching._watchers != streams:  # noqa: ASYNC110 - counts calls that grpc begins and ends
        await asyncio.sleep(0.01)


async def test_the_status_has_everything_of_the_snapshot(node: Node) -> None:
    """Load, cache, models with what their fallbacks cost, modes, graphs, traffic."""
    found = await node.admin.GetStatus(pb.GetStatusRequest())
    assert (found.worker, found.device, found.ready, found.uptime_s) == ("w", "cpu", True, 5.0)
    assert (found.load.waiting, found.load.saturation, dict(found.load.backlog_s)) == (3, 0.25, {"replay": 0.125, "eager": 2.0})
    assert (found.budget_bytes, found.used_bytes, found.reusable_bytes) == (1 << 30, 1 << 20, 7)
    assert (found.memory.memory_total_bytes, found.memory.utilization_ratio) == (20, 0.5)
    (model,) = found.models
    assert (model.alarm, dict(model.outcomes), model.saved_s, model.slower_s) == ("all eager", {"replay": 9, "eager": 1}, 2.5, 0.25)
    assert (model.reasons[0].fallback_reason, model.reasons[0].lost_s) == (replay_pb2.FALLBACK_REASON_EVICTED, 0.5)
    assert found.modes[0].mode.origin == "configuration"
    assert found.graphs[0].hits == 7
    assert (dict(found.sizes[0].size), found.sizes[0].runs) == ({"batch": 3, "seq": 7}, 12)


async def test_a_request_is_found_by_id_or_trace(node: Node) -> None:
    """With its reason; an id that is not kept gives nothing, and how many are."""
    note(node, "a", FallbackReason.REFUSED, "rng: aten.bernoulli")
    note(node, "b")
    for name in ("a", "tracea"):
        (decision,) = (await node.admin.FindDecisions(pb.FindDecisionsRequest(id=name))).decisions
        assert (decision.request_id, decision.refusal_reason, decision.total_s) == ("a", replay_pb2.REFUSAL_REASON_RNG, 1.0)
        assert dict(decision.bucket) == {"batch": 4}
    nothing = await node.admin.FindDecisions(pb.FindDecisionsRequest(id="c"))
    assert (len(nothing.decisions), nothing.kept) == (0, 2)
    with pytest.raises(grpc.aio.AioRpcError, match="id: missing"):
        await node.admin.FindDecisions(pb.FindDecisionsRequest())


async def test_a_watcher_hears_of_requests_and_graphs_in_order(node: Node) -> None:
    """From when it began, filtered as it asked."""
    note(node, "before")
    everything = node.admin.WatchDecisions(pb.WatchDecisionsRequest())
    fallbacks = node.admin.WatchDecisions(pb.WatchDecisionsRequest(fallbacks_only=True, model="echo"))
    await until_watched(node, 2)
    note(node, "a")
    node.observed.journal.happened(Happening.CAPTURED, KEY, seconds=0.5, size=9)
    note(node, "b", FallbackReason.EVICTED)
    note(node, "c", FallbackReason.EVICTED, model="other")
    heard = [await read(everything) for _ in range(4)]
    assert [message.WhichOneof("entry") for message in heard] == ["request", "graph", "request", "request"]
    assert (heard[1].graph.happening, heard[1].graph.bytes) == (pb.HAPPENING_CAPTURED, 9)
    heard = [await read(fallbacks) for _ in range(2)]
    assert [message.WhichOneof("entry") for message in heard] == ["graph", "request"]
    assert heard[1].request.request_id == "b"
    everything.cancel()
    fallbacks.cancel()
    await until_watched(node, 0)


async def test_watchers_are_bounded_and_a_stop_ends_them(node: Node) -> None:
    """One more than the limit is refused with a time to come back; a stop does not wait for those who watch."""
    streams = [node.admin.WatchDecisions(pb.WatchDecisionsRequest()) for _ in range(WATCHERS)]
    await until_watched(node, WATCHERS)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await node.admin.WatchDecisions(pb.WatchDecisionsRequest()).read()
    assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await asyncio.wait_for(node.servers.stop(30), 10)
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await streams[0].read()
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
