"""Makes graphs and destroys them: room first, then record, prove, measure, admit. In the capturer's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Protocol

from cachepolicy.cache import DoesNotFit, GraphCache, GraphEntry
from cachepolicy.costs import CostTable
from cachepolicy.keys import GraphKey, Signature
from cachepolicy.reasons import RefusalReason
from service.backends.base import Backend, Padding, Recording
from service.errors import CaptureRefused, Conflict, DeviceLost, NotYetProvable, OutOfDeviceMemory, told
from service.hostlock import HostLock
from service.lane import BackgroundLane, Lane
from service.measuring import SIZES, Figures, Timer
from service.memory import Ledger, predicted_bytes
from service.messages import GraphMode
from service.models.spec import Shape, Variant, variant_text
from service.progress import Progress, ProgressTable, Stage
from service.snapshot import Happening
from service.telemetry.tracing import Operation, Step, Value
from service.traffic import Traffic

if TYPE_CHECKING:
    from service.models.loaded import LoadedModel
    from service.registry import ServedModel
    from service.telemetry.journal import Journal
    from service.telemetry.metrics import Metrics
    from service.telemetry.tracing import Tracer

log = logging.getLogger(__name__)

_HURRY_S = 0.02  # a recording may hold a request up for so long
_PATIENCE_S = 0.5  # for requests that have less time left, before each recording
_POLL_S = 0.002
_ATTEMPTS = 20  # to find a graph that nobody looks at: `explain` does for an instant, from a thread of its own


@dataclass(frozen=True, slots=True)
class Verdict:
    """A recording may serve: with which padding, or at its exact size only, for what `detail` says."""

    padding: Padding = Padding.VALUE
    exact_only: bool = False
    detail: str = field(default="", compare=False)


class Verifier(Protocol):
    """Proves that a graph is right before it may serve. Raises CaptureRefused, NotYetProvable.

    Runs in the capturer's thread; all device work goes through the lane, in small items, so that requests slip in between and nothing
    replays beside them in an arena.
    """

    def judge(self, model: LoadedModel, variant: Variant, lane: Lane) -> None:
        """Whether the model may be captured at all: state, randomness, mutation. Once per load, before its first capture."""
        ...

    def verify(self, model: LoadedModel, variant: Variant, recording: Recording, lane: Lane) -> Verdict:
        """Whether this recording replays what eager computes, and which padding is safe."""
        ...

    def rows_independent(self, model: LoadedModel, variant: Variant, lane: Lane) -> bool:
        """Whether a row's answer is the same whatever the other rows of its batch are."""
        ...


@dataclass(frozen=True, slots=True)
class Graph:
    """The payload of a cache entry. `forced`: somebody wanted it whether it pays or not."""

    recording: Recording
    padding: Padding
    forced: bool = False


class Recorder:
    """Carries out captures and evictions, one at a time."""

    def __init__(
        self,
        backend: Backend,
        lane: BackgroundLane,
        cache: GraphCache,
        ledger: Ledger,
        costs: CostTable,
        verifier: Verifier,
        timer: Timer,
        host: HostLock,
        hurried: Callable[[float], bool],
        metrics: Metrics,
        journal: Journal,
        tracer: Tracer | None,
        *,
        own_pools: bool,
        min_gain: float,
        drift: Callable[[tuple[object, ...]], str],
    ) -> None:
        """`hurried` tells whether a request waits that has less than so many seconds left.

        `drift` as the router's: nothing is recorded under settings that the key does not name.
        """
        self.progress = ProgressTable()
        self.traffic = Traffic()  # by ladder bucket
        self.replayed = Traffic()  # by the graph that served
        self._backend = backend
        self._lane = lane
        self._cache = cache
        self._ledger = ledger
        self._costs = costs
        self._verifier = verifier
        self._timer = timer
        self._host = host
        self._hurried = hurried
        self._metrics = metrics
        self._journal = journal
        self._tracer = tracer
        self._steps: list[Step] = []  # of the capture in hand
        self._own_pools = own_pools
        self._min_gain = min_gain
        self._drift = drift

    # -- making

    def capture(
        self, served: ServedModel, variant: Variant, key: GraphKey, why: Mapping[str, Value], *, force: bool = False, known: bool = False
    ) -> GraphEntry:
        """Make the graph resident; `why` is told by its trace.

        Neither a forced one nor one that is known to pay has to show its profit; all are proven. Raises CaptureRefused for whatever stands
        against it (memory included), NotYetProvable, DeviceLost; Conflict where the model was unloaded or reloaded meanwhile.
        """
        resident = self._cache.get(key)
        if resident is not None:
            return resident
        if served.mode(variant, time()).mode is GraphMode.NONE:
            raise CaptureRefused(RefusalReason.UNSUPPORTED_MODE, "graphs are switched off for this model")
        if drifted := self._drift(served.surroundings.settings):
            raise CaptureRefused(RefusalReason.UNSUPPORTED_MODE, drifted)
        model, started = served.spec.name, monotonic()
        self._steps = []
        decision = {**why, "graphcache.budget_bytes": self._cache.budget, "graphcache.used_bytes": self._cache.used}
        try:
            entry = self._named(served, variant, key, force=force, known=known)
        except CaptureRefused as refusal:
            self._metrics.capture(model, refusal.reason)
            self._journal.happened(Happening.REFUSED, key, seconds=monotonic() - started, detail=str(refusal))
            result: Mapping[str, Value] = {"graphcache.result": str(refusal.reason)}
            self._trace("graphcache.capture", key, started, decision, result, self._steps, str(refusal))
            raise
        self._metrics.capture(model, "ok")
        self._journal.happened(Happening.CAPTURED, key, seconds=monotonic() - started, size=entry.bytes)
        result = {"graphcache.result": "ok", "graphcache.bytes": entry.bytes}
        self._trace("graphcache.capture", key, started, decision, result, self._steps)
        return entry

    def _named(self, served: ServedModel, variant: Variant, key: GraphKey, *, force: bool, known: bool) -> GraphEntry:
        """A capture, with whatever stands against it under the name of a refusal."""
        try:
            return self._capture(served, variant, key, force=force, known=known)
        except OutOfDeviceMemory as error:
            raise CaptureRefused(RefusalReason.OUT_OF_MEMORY, str(error)) from error
        except (CaptureRefused, DeviceLost, NotYetProvable, Conflict):
            raise
        except Exception as error:
            log.exception("capture of %s failed", key)
            raise CaptureRefused(RefusalReason.CAPTURE_ERROR, told(error)) from error

    def _capture(self, served: ServedModel, variant: Variant, key: GraphKey, *, force: bool, known: bool) -> GraphEntry:
        loaded, started = served.loaded, monotonic()
        self.progress.note(key, Progress(Stage.CAPTURING))
        with self._step("graphcache.judge"):
            self._verifier.judge(loaded, variant, self._lane)
        self._let_hurried_pass()
        with self._host.held():  # which is waited for before anything is evicted
            self._make_room(key)
            with self._step("graphcache.record"):
                recording = self._backend.record(loaded, variant, key.bucket, own_pool=self._own_pools)
        self._ledger.recorded(recording)
        try:
            # What a capture costs is what it keeps from requests: the proof and the measurement make way for them.
            self._costs.observe_capture(key.signature, key.bucket, recording.timings.total, recording.bytes, recording.arena_bytes)
            self.progress.note(key, Progress(Stage.VERIFYING))
            recorded = monotonic()
            with self._step("graphcache.verify"):
                verdict = self._verifier.verify(loaded, variant, recording, self._lane)
            verified = monotonic()
            if not (force or known):
                with self._step("graphcache.measure"):
                    self._require_profit(loaded, variant, key, recording, verdict)
            entry = self._admit(key, Graph(recording, verdict.padding, force), verdict)
        except BaseException:
            self._lane.barrier()
            self._ledger.close(recording)
            raise
        if served.rows_unknown(variant):  # proven once a graph is there, so that what gains most comes first
            served.rows_proven(variant, self._verifier.rows_independent(loaded, variant, self._lane))
        self._metrics.capture_timings(recording.timings, verify=verified - recorded, measure=monotonic() - verified)
        log.info("captured %s: %d nodes, %d bytes, %.1f ms", key, recording.nodes, recording.bytes, (monotonic() - started) * 1e3)
        return entry

    def _let_hurried_pass(self) -> None:
        """A recording holds others' launches up for milliseconds: requests that can't spare them go first, as long as that ends."""
        give_up = monotonic() + _PATIENCE_S
        while self._hurried(_HURRY_S) and monotonic() < give_up:
            self._lane.make_way()
            sleep(_POLL_S)

    def _make_room(self, key: GraphKey) -> None:
        """Evict for the predicted bytes, before anything is allocated. What is not predicted finds its room on admission."""
        need = predicted_bytes(self._costs, self._cache, key)
        if need is None:
            return
        if need <= self._cache.budget:
            self.retire(self._cache.make_room(need, monotonic()), f"room for {key}")
        short = self._ledger.lacks(need)
        if short:
            raise CaptureRefused(RefusalReason.OUT_OF_MEMORY, f"needs about {need} bytes, {short} more than the device has left")

    def _require_profit(self, loaded: LoadedModel, variant: Variant, key: GraphKey, recording: Recording, verdict: Verdict) -> None:
        sizes = [] if verdict.exact_only else self.traffic.shapes(key, SIZES)
        figures = self.measure(loaded, variant, key, recording, verdict.padding, sizes)
        if not figures.pays(self._min_gain):
            raise CaptureRefused(RefusalReason.UNPROFITABLE, f"{figures}; a replay has to save {self._min_gain * 100:.3g}% of itself")

    def measure(
        self,
        loaded: LoadedModel,
        variant: Variant,
        key: GraphKey,
        recording: Recording,
        padding: Padding,
        sizes: Sequence[tuple[Shape, int]],
    ) -> Figures:
        """Eager against replay at these sizes, or at the bucket's own where there are none."""
        figures = self._timer.time(loaded, variant, recording, padding, sizes or [(key.bucket.as_dict(), 1)], self._lane)
        self._costs.observe_eager(key.signature, key.bucket, figures.eager_s)
        self._costs.observe_replay(key.signature, key.bucket, figures.replay_s)
        return figures

    def _admit(self, key: GraphKey, graph: Graph, verdict: Verdict) -> GraphEntry:
        recording = graph.recording
        entry = GraphEntry(key, graph, recording.bytes, recording.arena, recording.arena_bytes, verdict.exact_only, verdict.detail)
        try:
            victims = self._cache.insert(entry, monotonic())
        except DoesNotFit as error:
            raise CaptureRefused(RefusalReason.MEMORY_BUDGET, str(error)) from error
        self.progress.drop(key)
        self.retire(victims, f"room for {key}")
        return entry

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        began, steps = monotonic(), self._steps
        try:
            yield
        finally:
            steps.append(Step(name, began, monotonic()))

    def _trace(
        self,
        name: str,
        key: GraphKey,
        began: float,
        decision: Mapping[str, Value],
        attributes: Mapping[str, Value],
        steps: Sequence[Step] = (),
        problem: str = "",
    ) -> None:
        if self._tracer is None:
            return
        graph = {
            "graphcache.model": key.signature.model,
            "graphcache.variant": variant_text(key.signature.variant),
            "graphcache.bucket": str(key.bucket),
            "graphcache.key": key.fingerprint(),
        }
        self._tracer.operation(Operation(name, began, monotonic(), {**graph, **attributes}, decision, steps, problem))

    # -- unmaking

    def evict(self, key: GraphKey, why: str) -> bool:
        """Evict one graph unless it is pinned, after the replay that has it in use. Whether it is gone."""
        entry = self._cache.evict(key)
        for _ in range(_ATTEMPTS):
            resident = self._cache.get(key)
            if entry is not None or resident is None or resident.pinned:
                break
            entry = self._lane.alone(lambda: self._cache.evict(key))
        if entry is not None:
            self.retire([entry], why)
        return entry is not None

    def resize(self, budget: int) -> None:
        """Change the budget and destroy what no longer fits, in-use graphs after their replay."""
        for _ in range(_ATTEMPTS):
            self.retire(self._lane.alone(lambda: self._cache.resize(budget, monotonic())), f"a budget of {budget} bytes")
            if self._cache.used <= budget:
                break

    def retire(self, victims: list[GraphEntry], why: str) -> None:
        """Destroy what the cache has evicted."""
        began = monotonic()
        for victim in victims:
            self.progress.note(victim.key, Progress(Stage.EVICTED))
            self._metrics.eviction(victim.key.signature.model)
            self._journal.happened(Happening.EVICTED, victim.key, size=victim.bytes)
        self.destroy(victims)
        for victim in victims:
            decision: dict[str, Value] = {"graphcache.cause": why, "graphcache.candidates": len(self._cache) + len(victims)}
            found = {"graphcache.bytes": victim.bytes, "graphcache.hits": victim.hits, "graphcache.saved_ms": victim.saved_s * 1e3}
            self._trace("graphcache.evict", victim.key, began, {**decision, "graphcache.budget_bytes": self._cache.budget}, found)

    def forget(self, signatures: Sequence[Signature]) -> None:
        """Nothing is known of these signatures any more."""
        for table in (self.progress, self.traffic, self.replayed):
            table.forget(signatures)

    def destroy(self, entries: list[GraphEntry]) -> None:
        """Give the memory of graphs back that are not in the cache any more."""
        if not entries:
            return
        self._lane.barrier()  # a replay that was routed before the entry left the cache has ended after this
        for entry in entries:
            graph = entry.payload
            assert isinstance(graph, Graph)
            self._ledger.close(graph.recording)
