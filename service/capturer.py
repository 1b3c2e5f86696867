"""Carries out what the policy decides: captures, verification before admission, destruction of what was evicted.

One thread and one capture at a time. Requests never wait for it: they ask `absence`, which reads a table.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from queue import SimpleQueue
from time import monotonic, time
from typing import TYPE_CHECKING, Protocol, TypeVar

from cachepolicy.buckets import Bucket
from cachepolicy.cache import DoesNotFit, GraphCache, GraphEntry
from cachepolicy.capture import Capture, CaptureAdmission, Evict, Rebuild, Refuse
from cachepolicy.costs import CostTable
from cachepolicy.keys import GraphKey, Signature
from cachepolicy.reasons import FallbackReason, RefusalReason
from service.backends.base import Backend, Padding, Recording
from service.errors import CaptureRefused, DeviceLost
from service.lane import Lane
from service.messages import GraphMode
from service.models.spec import Variant

if TYPE_CHECKING:
    from service.models.loaded import LoadedModel
    from service.registry import ServedModel
    from service.telemetry.metrics import Metrics

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A recording may serve: with which padding, or at its exact size only."""

    padding: Padding = Padding.VALUE
    exact_only: bool = False


class Verifier(Protocol):
    """Proves that a graph is right before it may serve. Raises CaptureRefused.

    Runs in the capturer's thread; all device work goes through the lane, in small items, so that requests slip in between and nothing
    replays beside them in an arena.
    """

    def judge(self, model: LoadedModel, variant: Variant, lane: Lane) -> None:
        """Whether the model may be captured at all: state, randomness, mutation. Once per load, before its first capture."""
        ...

    def verify(self, model: LoadedModel, variant: Variant, recording: Recording, lane: Lane) -> Verdict:
        """Whether this recording replays what eager computes, and which padding is safe."""
        ...


@dataclass(frozen=True, slots=True)
class Graph:
    """The payload of a cache entry."""

    recording: Recording
    padding: Padding


class Stage(StrEnum):
    """Where a key is on its way to serving."""

    PENDING = "pending"
    CAPTURING = "capturing"
    VERIFYING = "verifying"
    REFUSED = "refused"
    EVICTED = "evicted"


_PATIENCE = 20  # attempts to catch a graph between two replays
_ON_ITS_WAY = (Stage.PENDING, Stage.CAPTURING, Stage.VERIFYING)


@dataclass(frozen=True, slots=True)
class Progress:
    """What the capturer knows of a key that is not resident."""

    stage: Stage
    reason: RefusalReason | None = None
    detail: str = ""


class Capturer:
    """The only one who records and destroys graphs."""

    def __init__(
        self,
        backend: Backend,
        lane: Lane,
        cache: GraphCache,
        admission: CaptureAdmission,
        costs: CostTable,
        verifier: Verifier,
        metrics: Metrics,
        *,
        background: bool,
        own_pools: bool,
    ) -> None:
        self._backend = backend
        self._lane = lane
        self.cache = cache
        self._admission = admission
        self._costs = costs
        self._verifier = verifier
        self._metrics = metrics
        self._background = background
        self._own_pools = own_pools
        self.on_device_lost: Callable[[DeviceLost], None] = lambda _: None
        self._served: dict[Signature, tuple[ServedModel, Variant]] = {}
        self._progress: dict[GraphKey, Progress] = {}
        self._lock = threading.Lock()  # guards the admission policy and the two tables above
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._woken = False
        self._thread = threading.Thread(target=self._run, args=(backend.capturer,), name="capturer", daemon=True)
        self._thread.start()

    # -- asked by the router, on the lane's thread

    def absence(self, key: GraphKey) -> tuple[FallbackReason, str]:
        """Why this key has no resident graph, and the detail."""
        with self._lock:
            progress = self._progress.get(key)
            if progress is not None and progress.stage in _ON_ITS_WAY:
                return FallbackReason.CAPTURE_PENDING, str(progress.stage)
            decision = self._admission.judge(key, monotonic())
        if isinstance(decision, Refuse):  # the policy lets refusals age
            detail = progress.detail if progress is not None else ""
            return FallbackReason.REFUSED, f"{decision.reason}: {detail}" if detail else str(decision.reason)
        if progress is not None and progress.stage is Stage.EVICTED:
            return FallbackReason.EVICTED, ""
        return FallbackReason.NOT_CAPTURED, ""

    def count(self, key: GraphKey, served: Bucket | None) -> None:
        """Count a run for the policy; wakes the thread where a decision is due."""
        with self._lock:
            if key.signature not in self._served:  # unloaded or reloaded, and a request of before was still to be answered
                return
            due = self._admission.count(key.signature, key.bucket, served, monotonic())
            if not (due and self._background) or self._woken:
                return
            self._woken = True
        self._jobs.put(self._follow_policy)

    # -- asked by the worker

    def introduce(self, served: ServedModel) -> None:
        """A model is up, or its weights were replaced: its signatures may be captured from now on."""
        with self._lock:
            for variant in served.spec.all_variants():
                self._served[served.signature(variant)] = (served, variant)

    def warm(self, key: GraphKey, *, force: bool) -> Future[GraphEntry]:
        """Capture one bucket as soon as possible; `force` forgets an earlier refusal and skips the profit test, never the proof.

        The future raises CaptureRefused.
        """
        with self._lock:
            progress = self._progress.get(key)
            if progress is None or progress.stage is Stage.EVICTED or force:
                self._progress[key] = Progress(Stage.PENDING)
        return self._submit(partial(self._warm, key, force))

    def forget(self, signatures: list[Signature]) -> None:
        """Destroy all graphs of these signatures and all memory of them; returns when that is done.

        The caller has made sure that no batch of theirs will run any more.
        """
        self._submit(partial(self._forget, signatures)).result()

    def evict(self, keys: list[GraphKey]) -> Future[int]:
        """Take graphs out of service and destroy them; pinned ones stay. The future says how many went."""
        return self._submit(lambda: sum(self._evict(key, patient=True) for key in keys))

    def resize(self, budget: int) -> Future[None]:
        """Change the cache's budget and destroy what no longer fits."""
        return self._submit(partial(self._resize, budget))

    def discard(self, entry: GraphEntry, refusal: CaptureRefused | None = None) -> None:
        """A replay failed, or was found wrong: take its graph out of service, and refuse it where it was wrong. Does not wait."""
        self._jobs.put(partial(self._discard, entry, refusal))

    def progress(self) -> dict[GraphKey, Progress]:
        """All keys that are not resident but known."""
        with self._lock:
            return dict(self._progress)

    def close(self) -> None:
        """Stop after the job in hand and destroy all graphs."""
        self._submit(lambda: self._forget(list(self._served))).result()
        self._jobs.put(None)
        self._thread.join()

    # -- the capturer's thread

    def _run(self, context: Callable[[], AbstractContextManager[None]]) -> None:
        with context():
            while (job := self._jobs.get()) is not None:
                try:
                    job()
                except Exception:
                    log.exception("the capturer goes on after an error")

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def job() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - handed to the waiter whatever it is
                future.set_exception(error)

        self._jobs.put(job)
        return future

    def _follow_policy(self) -> None:
        with self._lock:
            self._woken = False
            actions = self._admission.decide(self.cache, monotonic())
            for action in actions:
                if isinstance(action, Capture):
                    self._progress[action.key] = Progress(Stage.PENDING)
        try:
            for action in actions:
                match action:
                    case Evict(key):
                        self._evict(key)
                    case Rebuild(signature):
                        self._rebuild(signature)
                    case Capture(key):
                        self._capture(key)
        except CaptureRefused as refusal:
            log.info("capture refused: %s", refusal)
        finally:
            with self._lock:  # what the plan did not come to is offered again by traffic
                for action in actions:
                    if isinstance(action, Capture) and self._progress.get(action.key) == Progress(Stage.PENDING):
                        del self._progress[action.key]

    def _warm(self, key: GraphKey, force: bool) -> GraphEntry:
        entry = self.cache.get(key)
        if entry is not None:
            return entry
        with self._lock:
            progress = self._progress.get(key)
        if progress is not None and progress.stage is Stage.REFUSED and not force:
            raise CaptureRefused(progress.reason or RefusalReason.CAPTURE_ERROR, progress.detail)
        return self._capture(key)

    def _capture(self, key: GraphKey) -> GraphEntry:
        """Record, prove, admit. Raises CaptureRefused, and remembers it."""
        resident = self.cache.get(key)
        if resident is not None:
            return resident
        with self._lock:
            found = self._served.get(key.signature)
        if found is None:
            raise CaptureRefused(RefusalReason.CAPTURE_ERROR, "the model was unloaded or reloaded meanwhile")
        served, variant = found
        if served.mode(variant, time()).mode is GraphMode.NONE:
            self._forget_progress(key)
            raise CaptureRefused(RefusalReason.UNSUPPORTED_MODE, "graphs are switched off for this model")
        loaded = served.loaded
        started = monotonic()
        try:
            self._note(key, Progress(Stage.CAPTURING))
            self._verifier.judge(loaded, variant, self._lane)
            recording = self._backend.record(loaded, variant, key.bucket, own_pool=self._own_pools)
            self._note(key, Progress(Stage.VERIFYING))
            try:
                verdict = self._verifier.verify(loaded, variant, recording, self._lane)
                entry = self._admit(key, recording, verdict, monotonic() - started)
            except BaseException:
                self._lane.barrier()
                recording.close()
                raise
        except CaptureRefused as refusal:
            self._remember_refusal(key, refusal)
            self._metrics.capture(served.spec.name, refusal.reason)
            raise
        except DeviceLost as lost:
            self.on_device_lost(lost)
            raise
        except Exception as error:
            log.exception("capture of %s failed", key)
            unforeseen = CaptureRefused(RefusalReason.CAPTURE_ERROR, f"{type(error).__name__}: {error}")
            self._remember_refusal(key, unforeseen)
            self._metrics.capture(served.spec.name, unforeseen.reason)
            raise unforeseen from error
        self._metrics.capture(served.spec.name, "ok")
        self._metrics.capture_timings(recording.timings)
        log.info("captured %s: %d nodes, %d bytes, %.1f ms", key, recording.nodes, recording.bytes, (monotonic() - started) * 1e3)
        return entry

    def _admit(self, key: GraphKey, recording: Recording, verdict: Verdict, seconds: float) -> GraphEntry:
        entry = GraphEntry(
            key=key,
            payload=Graph(recording, verdict.padding),
            bytes=recording.bytes,
            arena=recording.arena,
            arena_bytes=recording.arena_bytes,
            exact_only=verdict.exact_only,
        )
        try:
            victims = self.cache.insert(entry, monotonic())
        except DoesNotFit as error:
            raise CaptureRefused(RefusalReason.MEMORY_BUDGET, str(error)) from error
        with self._lock:
            self._progress.pop(key, None)
            self._costs.observe_capture(key.signature, key.bucket, seconds, recording.bytes)
        self._retire(victims)
        return entry

    def _remember_refusal(self, key: GraphKey, refusal: CaptureRefused) -> None:
        with self._lock:
            self._progress[key] = Progress(Stage.REFUSED, refusal.reason, refusal.detail)
            self._admission.refuse(key, refusal.reason, monotonic())

    def _note(self, key: GraphKey, progress: Progress) -> None:
        with self._lock:
            self._progress[key] = progress

    def _forget_progress(self, key: GraphKey) -> None:
        with self._lock:
            self._progress.pop(key, None)

    def _evict(self, key: GraphKey, *, patient: bool = False) -> bool:
        """Evict one graph unless it is pinned; `patient` waits for the replay that has it in use."""
        entry = self.cache.evict(key)
        for _ in range(_PATIENCE):
            resident = self.cache.get(key)
            if entry is not None or not patient or resident is None or resident.pinned:
                break
            self._lane.barrier()
            entry = self.cache.evict(key)
        if entry is not None:
            self._retire([entry])
        return entry is not None

    def _resize(self, budget: int) -> None:
        for _ in range(_PATIENCE):
            self._retire(self.cache.resize(budget, monotonic()))
            if self.cache.used <= budget:
                break
            self._lane.barrier()  # what is in use now can go after its replay

    def _retire(self, victims: list[GraphEntry]) -> None:
        with self._lock:
            for victim in victims:
                self._progress[victim.key] = Progress(Stage.EVICTED)
        for victim in victims:
            found = self._served.get(victim.key.signature)
            if found is not None:
                self._metrics.eviction(found[0].spec.name)
        self._destroy(victims)

    def _rebuild(self, signature: Signature) -> None:
        """Drop first, then record the survivors again; requests run eagerly meanwhile (DESIGN, decision 3)."""
        keys = [entry.key for entry in self.cache if entry.key.signature == signature and not entry.pinned]
        for key in keys:
            self._evict(key)
        for key in sorted(keys, key=lambda k: -k.bucket.volume):
            self._capture(key)

    def _discard(self, entry: GraphEntry, refusal: CaptureRefused | None) -> None:
        if self.cache.get(entry.key) is entry:
            self.cache.pin(entry.key, pinned=False)
            self._evict(entry.key, patient=True)
            if refusal is not None:
                self._remember_refusal(entry.key, refusal)

    def _forget(self, signatures: list[Signature]) -> None:
        gone = [entry for signature in signatures for entry in self.cache.drop(signature)]
        self._destroy(gone)
        with self._lock:
            for signature in signatures:
                self._served.pop(signature, None)
                self._admission.forget(signature)
            wanted = set(signatures)
            self._progress = {key: p for key, p in self._progress.items() if key.signature not in wanted}

    def _destroy(self, entries: list[GraphEntry]) -> None:
        if not entries:
            return
        self._lane.barrier()  # a replay that was routed before the entry left the cache has ended after this
        for entry in entries:
            graph = entry.payload
            assert isinstance(graph, Graph)
            graph.recording.close()
