"""Follows the capture policy in a thread of its own: captures, evictions, rebuilt arenas, and judging again what serves.

One thread and one capture at a time. Requests never wait for it: they ask `absence`, which reads a table, and `count` a run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from cachepolicy.buckets import Bucket
from cachepolicy.cache import GraphCache, GraphEntry
from cachepolicy.capture import Action, Capture, CaptureAdmission, Evict, Rebuild, Refuse
from cachepolicy.costs import CostTable
from cachepolicy.keys import GraphKey, Signature
from cachepolicy.reasons import FallbackReason, RefusalReason
from service.errors import CaptureRefused, Conflict, DeviceLost, NotYetProvable
from service.jobs import Job, Jobs, Turn
from service.lane import BackgroundLane
from service.memory import Ledger
from service.messages import BudgetChange
from service.models.spec import Shape, Variant
from service.progress import UNKNOWN, Progress, Stage
from service.recorder import Graph, Recorder
from service.review import Review
from service.telemetry.tracing import Value

if TYPE_CHECKING:
    from service.registry import ServedModel
    from service.telemetry.metrics import Metrics

log = logging.getLogger(__name__)
T = TypeVar("T")

_PAUSE_S = 0.05  # between two decisions: where captures cost next to nothing, every run would make one due
_RECONSIDER_S = 2.0  # costs change and refusals age also where no loss makes a decision due
_WINDOW_S = 5.0  # over which the lane's load is taken
_SUPERSEDED = "the model was unloaded or reloaded meanwhile, or its graph evicted"
_TICK_S = 0.25  # how often a thread without a job looks whether something serves that should be judged again


@dataclass(frozen=True, slots=True)
class Promise:
    """What others tell of a signature: runs that an hour brings by ladder bucket, and costs as `CostTable.load` takes them."""

    runs: Mapping[Bucket, float] = field(default_factory=dict)
    costs: Mapping[Bucket, tuple[float, float, float, int, int]] = field(default_factory=dict)


class Capturer:
    """The only one who has graphs recorded and destroyed."""

    def __init__(
        self,
        context: Callable[[], AbstractContextManager[None]],
        cache: GraphCache,
        recorder: Recorder,
        ledger: Ledger,
        admission: CaptureAdmission,
        costs: CostTable,
        metrics: Metrics,
        idle: Callable[[], bool],
        lane: BackgroundLane,
        *,
        background: bool,
        shadow: bool,
    ) -> None:
        """`context` is entered by the thread; `idle` tells whether no request waits or runs."""
        self.cache = cache
        self.ledger = ledger
        self.on_device_lost: Callable[[DeviceLost], None] = lambda _: None
        self._recorder = recorder
        self._progress = recorder.progress
        self._admission = admission
        self._costs = costs
        self._metrics = metrics
        self._idle = idle
        self._lane = lane
        self._window = (monotonic(), lane.busy_s)
        self._background = background
        self._shadow = shadow
        self._served: dict[Signature, tuple[ServedModel, Variant]] = {}
        self._since: dict[Signature, float] = {}
        self._lock = threading.Lock()  # for changes of the two tables above
        self._warmed_up: set[GraphKey] = set()  # buckets that ran eagerly before
        self._missed: dict[GraphKey, None] = {}  # since the last decision
        self._review = Review(cache, recorder, costs)
        self._jobs = Jobs()
        self._still_wanted: Callable[[], bool] = lambda: True  # the capture or measurement in hand
        lane.between = self._make_way
        self._woken = False
        self._closing = threading.Event()
        self._decided_at = monotonic()
        self._thread = threading.Thread(target=self._run, args=(context,), name="capturer", daemon=True)
        self._thread.start()

    # -- asked on the lane's thread

    def absence(self, key: GraphKey) -> tuple[FallbackReason, str]:
        """Why this key has no resident graph, and the detail."""
        progress = self._progress.get(key)
        if progress is None and not self.cache.budget:
            return FallbackReason.REFUSED, f"{RefusalReason.MEMORY_BUDGET}: the budget is 0"
        return UNKNOWN if progress is None else progress.absence()

    def pays(self, entry: GraphEntry, key: GraphKey) -> bool:
        """Whether a run of the bucket of `key` is to be replayed by this graph. One of a larger bucket has to be faster than eager."""
        bucket = entry.key.bucket
        if bucket == key.bucket or entry.pinned or (isinstance(entry.payload, Graph) and entry.payload.forced):
            return True
        eager, replay = self._costs.eager(key.signature, key.bucket), self._costs.replay(key.signature, bucket)
        return eager is None or replay is None or replay < eager

    def count(self, key: GraphKey, shape: Shape, serving: GraphKey | None) -> None:
        """Count a run for the policy; wakes the thread where a decision is due."""
        if key.signature not in self._served:  # unloaded or reloaded, and a request of before was still to be answered
            return
        self._recorder.traffic.note(key, shape)
        if serving is None:
            self._missed[key] = None
        else:
            self._recorder.replayed.note(serving, shape)
        now = monotonic()
        due = self._admission.count(key.signature, key.bucket, None if serving is None else serving.bucket, now)
        if due and self._background and not self._woken and now - self._decided_at >= _PAUSE_S:
            self._woken = True
            self._jobs.put(self._follow_policy, Turn.POLICY)

    def observe_eager(self, key: GraphKey, seconds: float) -> None:
        """An eager run was timed. A bucket's first one tells nothing: it builds what all later ones find."""
        if key in self._warmed_up:
            self._costs.observe_eager(key.signature, key.bucket, seconds)
        elif key.signature in self._served:
            self._warmed_up.add(key)

    def observe_replay(self, key: GraphKey, seconds: float) -> None:
        """A replay was timed."""
        self._costs.observe_replay(key.signature, key.bucket, seconds)

    # -- asked by the worker

    def introduce(self, served: ServedModel) -> None:
        """A model is up, or its weights were replaced: its signatures may be captured from now on."""
        with self._lock:
            for variant in served.spec.all_variants():
                signature = served.signature(variant)
                self._admission.introduce(signature, served.ladder, monotonic())
                self._served[signature] = (served, variant)
                self._since[signature] = monotonic()

    def foresee(self, promises: Mapping[Signature, Promise]) -> Future[list[Capture]]:
        """What the policy would capture now for traffic that is promised; counts of these signatures begin anew. Captures nothing."""
        return self._submit(partial(self._foresee, promises), Turn.ASKED)

    def warm(self, key: GraphKey, *, force: bool, known: bool = False) -> Future[GraphEntry]:
        """Capture one bucket as soon as possible; `force` forgets an earlier refusal and skips the profit test, never the proof.

        One that is `known` to pay, from measurements of others, is not measured either.

        The future raises CaptureRefused, NotYetProvable.
        """
        progress = self._progress.get(key)
        if self.cache.get(key) is None and (progress is None or progress.stage in (Stage.EVICTED, Stage.SHADOW) or force):
            self._progress.note(key, Progress(Stage.PENDING))
        return self._submit(partial(self._warm, key, force, known), Turn.ASKED)

    def forget(self, signatures: list[Signature]) -> None:
        """Destroy all graphs of these signatures and all memory of them, and give up the one in the making; returns when that is done.

        The caller has made sure that no batch of theirs will run any more.
        """
        self._submit(partial(self._forget, signatures)).result()

    def evict(self, keys: list[GraphKey]) -> Future[int]:
        """Take graphs out of service and destroy them; pinned ones stay. The future says how many went.

        Where the largest of an arena went and others stay, they are recorded again after that, so that its memory comes back.
        """
        return self._submit(partial(self._evict_all, keys))

    def resize(self, budget: int) -> Future[BudgetChange]:
        """Change the cache's budget and destroy what no longer fits."""
        return self._submit(partial(self._resize, budget))

    def discard(self, entry: GraphEntry, refusal: CaptureRefused | None = None) -> None:
        """A replay failed, or was found wrong: take its graph out of service, and refuse it where it was wrong. Does not wait."""
        self._jobs.put(partial(self._discard, entry, refusal), Turn.AT_ONCE)

    def progress(self) -> dict[GraphKey, Progress]:
        """All keys that are not resident but known."""
        return self._progress.all()

    def sizes(self, signature: Signature) -> tuple[dict[tuple[tuple[str, int], ...], int], float]:
        """Runs per exact size that were counted for a signature, and the seconds since it came up."""
        return self._recorder.traffic.histogram(signature), monotonic() - self._since.get(signature, monotonic())

    def histograms(self) -> dict[Signature, dict[tuple[tuple[str, int], ...], int]]:
        """Runs per exact size of every signature."""
        return self._recorder.traffic.histograms()

    def close(self) -> None:
        """Give up the capture in hand and whatever else is queued, and destroy all graphs."""
        self._closing.set()
        self._submit(lambda: self._forget(list(self._served)), last=True).result()
        self._jobs.put(None, Turn.POLICY)
        self._thread.join()

    # -- the capturer's thread

    def _run(self, context: Callable[[], AbstractContextManager[None]]) -> None:
        with context():
            while True:
                job = self._jobs.next(self._look_around, _TICK_S)
                if job is None:
                    return
                self._do(job)

    def _do(self, job: Job) -> None:
        try:
            job()
        except DeviceLost as lost:
            self.on_device_lost(lost)
        except BaseException:
            log.exception("the capturer goes on after an error")

    def _make_way(self) -> None:
        """Between two steps of a proof or a measurement: do what can't wait for its end. Raises Conflict where it lost its purpose."""
        while (job := self._jobs.pop(Turn.AT_ONCE)) is not None:
            self._do(job)
        if not self._still_wanted():
            raise Conflict(_SUPERSEDED)

    @contextmanager
    def _while(self, wanted: Callable[[], bool]) -> Iterator[None]:
        """What is done inside ends with Conflict as soon as it has lost its purpose."""
        self._still_wanted = wanted
        try:
            yield
        finally:
            self._still_wanted = lambda: True

    def _submit(self, work: Callable[[], T], turn: Turn = Turn.AT_ONCE, *, last: bool = False) -> Future[T]:
        future: Future[T] = Future()

        def job() -> None:
            if self._closing.is_set() and not last:
                future.cancel()
                return
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - handed to the waiter whatever it is
                future.set_exception(error)

        self._jobs.put(job, turn)
        return future

    def _follow_policy(self) -> None:
        self._woken = False
        if self._closing.is_set():
            return
        self._decided_at = now = monotonic()
        self._charge_captures(now)
        actions = self._admission.decide(self.cache, now)
        captures = [action.key for action in actions if isinstance(action, Capture)]
        self._note_refusals(now)
        for key in captures:
            self._progress.note(key, Progress(Stage.SHADOW if self._shadow else Stage.PENDING))
        if self._shadow:
            self._count_shadow(actions)
            return
        try:
            for action in actions:
                if self._closing.is_set() or self._jobs.any(Turn.ASKED) or not self._carry_out(action, len(actions)):
                    break
        except (CaptureRefused, NotYetProvable, Conflict) as refusal:
            log.info("not captured: %s", refusal)
        finally:
            self._progress.drop_pending(captures)  # what the plan did not come to is offered again by traffic

    def _charge_captures(self, now: float) -> None:
        since, before = self._window
        if now - since >= _WINDOW_S:
            busy_s = self._lane.busy_s
            self._costs.charge_captures((busy_s - before) / (now - since))
            self._window = (now, busy_s)

    def _carry_out(self, action: Action, among: int) -> bool:
        match action:
            case Evict(key):
                return self._recorder.evict(key, "the policy keeps what saves more")
            case Rebuild(signature):
                return self._rebuild({entry.arena for entry in self.cache.resident(signature)})
            case Capture(key, gain_s):
                why: dict[str, Value] = {
                    "graphcache.cause": "policy",
                    "graphcache.predicted_gain_ms": gain_s * 1e3,
                    "graphcache.candidates": among,
                }
                self._capture(key, why)
                return True

    def _count_shadow(self, actions: Iterable[Action]) -> None:
        for action in actions:
            signature = action.signature if isinstance(action, Rebuild) else action.key.signature
            found = self._served.get(signature)
            if found is not None:
                self._metrics.shadow(found[0].spec.name, type(action).__name__.lower())

    def _note_refusals(self, now: float) -> None:
        """What the policy thinks of the keys that were missed; kept in the table, so that requests need not ask it."""
        missed, self._missed = self._missed, {}
        for key in list(missed):
            progress = self._progress.get(key)
            decision = self._admission.judge(key, now)
            refused = progress is not None and progress.stage is Stage.REFUSED
            if isinstance(decision, Refuse) and not refused and self.cache.get(key) is None:
                self._progress.note(key, Progress(Stage.REFUSED, decision.reason, self._prediction(key)))
            elif refused and not isinstance(decision, Refuse):
                self._progress.drop(key)

    def _prediction(self, key: GraphKey) -> str:
        eager, replay = self._costs.eager(key.signature, key.bucket), self._costs.replay(key.signature, key.bucket)
        if eager is None or replay is None:
            return ""
        return f"predicted for {key.bucket}: eager {eager * 1e3:.3g} ms, padded replay {replay * 1e3:.3g} ms"

    def _foresee(self, promises: Mapping[Signature, Promise]) -> list[Capture]:
        with self._lock:
            now = monotonic()
            for signature, promise in promises.items():
                found = self._served.get(signature)
                if found is not None:
                    self._costs.load(signature, promise.costs)
                    self._admission.introduce(signature, found[0].ladder, now, promise.runs)
        return [action for action in self._admission.decide(self.cache, monotonic()) if isinstance(action, Capture)]

    def _warm(self, key: GraphKey, force: bool, known: bool) -> GraphEntry:
        progress = self._progress.get(key)
        if progress is not None and progress.stage is Stage.REFUSED and not force:
            raise CaptureRefused(progress.reason or RefusalReason.CAPTURE_ERROR, progress.detail)
        entry = self._capture(key, {"graphcache.cause": "asked for", "graphcache.forced": force}, force=force, known=known)
        if force:
            self._admission.pardon(key)
        return entry

    def _capture(self, key: GraphKey, why: Mapping[str, Value], *, force: bool = False, known: bool = False) -> GraphEntry:
        """Have a graph made. Raises what the recorder raises, and remembers refusals."""
        found = self._served.get(key.signature)
        if found is None:
            self._progress.drop(key)
            raise Conflict(_SUPERSEDED)
        try:
            with self._while(lambda: key.signature in self._served):
                return self._recorder.capture(*found, key, why, force=force, known=known)
        except CaptureRefused as refusal:
            if refusal.reason is RefusalReason.UNSUPPORTED_MODE:  # the mode's business, and over as soon as that changes
                self._progress.drop(key)
            else:
                self._refuse(key, refusal)
            raise
        except (NotYetProvable, Conflict):
            self._progress.drop(key)
            raise
        except DeviceLost as lost:
            self.on_device_lost(lost)
            raise

    def _refuse(self, key: GraphKey, refusal: CaptureRefused) -> None:
        if refusal.reason is RefusalReason.UNPROFITABLE:  # the refusal keeps it away while that lasts; then it is to be measured anew
            self._costs.doubt(key.signature, key.bucket)
        self._progress.note(key, Progress(Stage.REFUSED, refusal.reason, refusal.detail))
        self._admission.refuse(key, refusal.reason, monotonic())

    def _evict_all(self, keys: list[GraphKey]) -> int:
        entries = [entry for key in keys if (entry := self.cache.get(key)) is not None]
        gone = [entry for entry in entries if self._recorder.evict(entry.key, "asked for")]
        for arena in {entry.arena for entry in gone if entry.arena}:
            top = max(entry.key.bucket.volume for entry in gone if entry.arena == arena)
            left = [entry.key.bucket.volume for entry in self.cache if entry.arena == arena]
            if left and top > max(left):
                self._jobs.put(partial(self._rebuild, {arena}), Turn.ASKED)
        return len(gone)

    def _rebuild(self, arenas: set[str]) -> bool:
        """Drop arenas, then record their graphs again; requests run eagerly meanwhile (docs/design.md, 3). Whether that was possible."""
        members = [entry for entry in self.cache if entry.arena and entry.arena in arenas]
        if any(entry.pinned for entry in members):  # the arena would not empty
            return False
        why = "its arena is made anew"
        dropped = [entry for entry in members if self._recorder.evict(entry.key, why)]
        for entry in sorted(dropped, key=lambda entry: -entry.key.bucket.volume):
            try:
                forced = isinstance(entry.payload, Graph) and entry.payload.forced
                self._capture(entry.key, {"graphcache.cause": why}, force=forced, known=True)
            except (CaptureRefused, NotYetProvable, Conflict) as refusal:
                log.warning("not captured again: %s", refusal)
        return True

    def _resize(self, budget: int) -> BudgetChange:
        used, kept = self.cache.used, self.ledger.reusable
        self._recorder.resize(budget)
        kept_now = self.ledger.reusable
        return BudgetChange(self.cache.budget, self.cache.used, max(0, used - self.cache.used - max(0, kept_now - kept)), kept_now)

    def _discard(self, entry: GraphEntry, refusal: CaptureRefused | None) -> None:
        if self.cache.get(entry.key) is entry:
            self.cache.pin(entry.key, pinned=False)
            self._recorder.evict(entry.key, "its replay failed" if refusal is None else str(refusal))
            if refusal is not None:
                self._refuse(entry.key, refusal)

    def _look_around(self) -> None:
        """Nothing to do: reconsider what is missed although nothing was lost by it so far, and measure what serves."""
        if self._missed and self._background and monotonic() - self._decided_at >= _RECONSIDER_S:
            self._follow_policy()
        self._charge_captures(monotonic())
        if self._idle() and (entry := self._review.next()) is not None and (found := self._served.get(entry.key.signature)):
            with self._while(lambda: self.cache.get(entry.key) is entry):
                refusal = self._review.judge(entry, *found)
            if refusal is not None:
                log.warning("%s is retired: %s", entry.key, refusal)
                self._discard(entry, refusal)

    def _forget(self, signatures: list[Signature]) -> None:
        gone = [entry for signature in signatures for entry in self.cache.drop(signature)]
        self._recorder.destroy(gone)
        with self._lock:
            for signature in signatures:
                self._served.pop(signature, None)
                self._since.pop(signature, None)
                self._admission.forget(signature)
        wanted = set(signatures)
        self._warmed_up = {key for key in list(self._warmed_up) if key.signature not in wanted}
        self._recorder.forget(signatures)
