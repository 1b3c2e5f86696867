"""Looking at a worker over the wire: its status, and its decisions as they fall."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from service.errors import Overloaded, Unavailable
from service.messages import GraphInfo
from service.pb.graphcache.v1 import admin_pb2 as pb
from service.rpc.codec import wire_enum
from service.rpc.ports import Observations
from service.rpc.replay import fallback_of, mode_state, refusal_of, sizes_of
from service.rpc.status import Context
from service.snapshot import Decision, DeviceReading, Entry, GraphEvent, Happening, ModelView, Snapshot

WATCHERS = 16  # streams of decisions at a time
_EVERY_S = 0.1  # between two looks for what is new

HAPPENINGS: dict[Happening, pb.Happening] = wire_enum(Happening, pb.Happening, "HAPPENING")


class Watching:
    """What AdminService tells of a worker's present and recent past."""

    def __init__(self, observations: Observations) -> None:
        self._observations = observations
        self._closing = asyncio.Event()
        self._watchers = 0

    def close(self) -> None:
        """End every stream with UNAVAILABLE."""
        self._closing.set()

    async def status(self) -> pb.GetStatusResponse:
        """Everything now; put together beside the event loop."""
        return await asyncio.to_thread(lambda: _status(self._observations.snapshot()))

    async def find(self, name: str) -> pb.FindDecisionsResponse:
        """How requests of one id ended."""
        journal = self._observations.journal
        found = await asyncio.to_thread(journal.find, name)
        return pb.FindDecisionsResponse(decisions=[_decision(one) for one in found], kept=journal.kept)

    async def watch(self, request: pb.WatchDecisionsRequest, context: Context) -> None:
        """Write every entry from now on; a reader that is too slow misses those that are no longer kept."""
        if self._watchers >= WATCHERS:
            raise Overloaded(f"{WATCHERS} streams of decisions are open already", 5.0)
        journal = self._observations.journal
        number = journal.number
        self._watchers += 1
        try:
            while not self._closing.is_set():
                for entry in journal.since(number, replays=not request.fallbacks_only):
                    number = entry.number
                    if request.model in ("", entry.model):
                        await context.write(_entry(entry))
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), _EVERY_S)
        finally:
            self._watchers -= 1
        raise Unavailable("the server is stopping")


def graph(info: GraphInfo) -> pb.Graph:
    """One line of the cache."""
    return pb.Graph(
        model=info.model,
        version=info.version,
        variant=dict(info.variant),
        bucket=info.bucket.as_dict(),
        state=f"GRAPH_STATE_{info.state.upper()}",
        key=info.key,
        hits=info.hits,
        saved_s=info.saved_s,
        bytes=info.bytes,
        arena=info.arena,
        last_used_s=info.last_used_s,
        pinned=info.pinned,
        reason=info.reason,
        padding_ratio=info.padding_ratio,
    )


def _entry(entry: Entry) -> pb.WatchDecisionsResponse:
    if isinstance(entry, Decision):
        return pb.WatchDecisionsResponse(request=_decision(entry))
    return pb.WatchDecisionsResponse(graph=_event(entry))


def _decision(of: Decision) -> pb.Decision:
    return pb.Decision(
        at=of.at,
        model=of.model,
        version=of.version,
        request_id=of.request_id,
        trace_id=of.trace_id,
        shape=of.shape,
        outcome=of.outcome,
        fallback_reason=fallback_of(of.reason),
        refusal_reason=refusal_of(of.reason, of.detail),
        detail=of.detail,
        hint=of.hint,
        bucket=sizes_of(of.bucket),
        variant=dict(of.variant),
        padding_ratio=of.padding_ratio,
        batch_rows=of.batch_rows,
        parts=of.parts,
        queue_s=of.queue_s,
        execute_s=of.execute_s,
        total_s=of.total_s,
    )


def _event(of: GraphEvent) -> pb.GraphEvent:
    return pb.GraphEvent(
        at=of.at,
        happening=HAPPENINGS[of.happening],
        model=of.model,
        bucket=of.bucket.as_dict(),
        variant=dict(of.variant),
        seconds=of.seconds,
        bytes=of.bytes,
        detail=of.detail,
    )


def _status(of: Snapshot) -> pb.GetStatusResponse:
    load = of.load
    return pb.GetStatusResponse(
        worker=of.worker,
        program_version=of.program,
        device=of.device,
        at=of.at,
        uptime_s=of.uptime_s,
        ready=of.ready,
        load=pb.Load(
            waiting=load.waiting, running=load.running, saturation=load.saturation, busy_ratio=load.busy_ratio, backlog_s=load.backlog_s
        ),
        budget_bytes=of.budget,
        used_bytes=of.used,
        reusable_bytes=of.reusable,
        memory=None if of.memory is None else _reading(of.memory),
        models=[_model(model) for model in of.models],
        modes=[pb.VariantMode(model=m.model, variant=dict(m.variant), mode=mode_state(m.state)) for m in of.modes],
        graphs=[graph(info) for info in of.graphs],
        sizes=[
            pb.SizeCount(model=s.model, variant=dict(s.variant), size=s.size.as_dict(), runs=s.runs, bucket=sizes_of(s.bucket))
            for s in of.sizes
        ],
    )


def _reading(of: DeviceReading) -> pb.DeviceReading:
    return pb.DeviceReading(
        memory_used_bytes=of.memory_used, memory_total_bytes=of.memory_total, utilization_ratio=of.utilization, clocks_hertz=of.clocks
    )


def _model(of: ModelView) -> pb.ModelView:
    return pb.ModelView(
        name=of.name,
        versions=of.versions,
        outcomes=of.outcomes,
        saved_s=of.saved_s,
        slower_s=of.slower_s,
        reasons=[
            pb.ReasonCount(fallback_reason=fallback_of(r.reason), requests=r.requests, lost_s=r.lost_s, detail=r.detail, hint=r.hint)
            for r in of.reasons
        ],
        alarm=of.alarm,
    )
