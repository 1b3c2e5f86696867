"""Follows the capture policy: tells it what runs, asks it for decisions when they are due, and has them carried out."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import TYPE_CHECKING

from cachepolicy.cache import GraphCache
from cachepolicy.capture import Action, Capture, CaptureAdmission, Evict, Rebuild, Refuse
from cachepolicy.costs import CostTable
from cachepolicy.keys import GraphKey, Signature
from service.errors import CaptureRefused, Conflict, NotYetProvable
from service.jobs import JobThread, Turn
from service.lane import BackgroundLane
from service.models.spec import Shape
from service.progress import Progress, Stage
from service.recorder import Recorder
from service.telemetry.tracing import Value
from service.upkeep import Promise, Upkeep

if TYPE_CHECKING:
    from service.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_PAUSE_S = 0.05  # between two decisions: where captures cost next to nothing, every run would make one due
_RECONSIDER_S = 2.0  # costs change and refusals age also where no loss makes a decision due
_WINDOW_S = 5.0  # over which the lane's load is taken


class Follower:
    """Decides in the capturer's thread; runs are counted by the lane's."""

    def __init__(
        self,
        thread: JobThread,
        upkeep: Upkeep,
        cache: GraphCache,
        recorder: Recorder,
        admission: CaptureAdmission,
        costs: CostTable,
        metrics: Metrics,
        lane: BackgroundLane,
        *,
        background: bool,
        shadow: bool,
    ) -> None:
        self._thread = thread
        self._upkeep = upkeep
        self._cache = cache
        self._recorder = recorder
        self._progress = recorder.progress
        self._admission = admission
        self._costs = costs
        self._metrics = metrics
        self._lane = lane
        self._background = background
        self._shadow = shadow
        self._missed: dict[GraphKey, None] = {}  # since the last decision
        self._woken = False
        self._decided_at = monotonic()
        self._window = (monotonic(), lane.busy_s)

    def count(self, key: GraphKey, shape: Shape, serving: GraphKey | None) -> None:
        """Count a run for the policy, and wake the thread where a decision is due. On the lane's thread."""
        if self._upkeep.served(key.signature) is None:  # unloaded or reloaded, and a request of before was still to be answered
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
            self._thread.put(self.follow, Turn.POLICY)

    def foresee(self, promises: Mapping[Signature, Promise]) -> list[Capture]:
        """What the policy would capture now for traffic that is promised."""
        self._upkeep.promise(promises)
        return [action for action in self._admission.decide(self._cache, monotonic()) if isinstance(action, Capture)]

    def look_around(self) -> None:
        """Reconsider what is missed although nothing was lost by it so far."""
        if self._missed and self._background and monotonic() - self._decided_at >= _RECONSIDER_S:
            self.follow()
        self._charge_captures(monotonic())

    def follow(self) -> None:
        """Ask for a decision and carry it out."""
        self._woken = False
        if self._thread.closing():
            return
        self._decided_at = now = monotonic()
        self._charge_captures(now)
        actions = self._admission.decide(self._cache, now)
        captures = [action.key for action in actions if isinstance(action, Capture)]
        self._note_refusals(now)
        for key in captures:
            self._progress.note(key, Progress(Stage.SHADOW if self._shadow else Stage.PENDING))
        if self._shadow:
            self._count_shadow(actions)
            return
        try:
            for action in actions:
                if self._thread.closing() or self._thread.waits(Turn.ASKED) or not self._carry_out(action, len(actions)):
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
                return self._upkeep.rebuild({entry.arena for entry in self._cache.resident(signature)})
            case Capture(key, gain_s):
                why: dict[str, Value] = {
                    "graphcache.cause": "policy",
                    "graphcache.predicted_gain_ms": gain_s * 1e3,
                    "graphcache.candidates": among,
                }
                self._upkeep.capture(key, why)
                return True

    def _count_shadow(self, actions: Iterable[Action]) -> None:
        for action in actions:
            signature = action.signature if isinstance(action, Rebuild) else action.key.signature
            found = self._upkeep.served(signature)
            if found is not None:
                self._metrics.shadow(found[0].spec.name, type(action).__name__.lower())

    def _note_refusals(self, now: float) -> None:
        """What the policy thinks of the keys that were missed; kept in the table, so that requests need not ask it."""
        missed, self._missed = self._missed, {}
        for key in list(missed):
            progress = self._progress.get(key)
            decision = self._admission.judge(key, now)
            refused = progress is not None and progress.stage is Stage.REFUSED
            if isinstance(decision, Refuse) and not refused and self._cache.get(key) is None:
                self._progress.note(key, Progress(Stage.REFUSED, decision.reason, self._prediction(key)))
            elif refused and not isinstance(decision, Refuse):
                self._progress.drop(key)

    def _prediction(self, key: GraphKey) -> str:
        eager, replay = self._costs.eager(key.signature, key.bucket), self._costs.replay(key.signature, key.bucket)
        if eager is None or replay is None:
            return ""
        return f"predicted for {key.bucket}: eager {eager * 1e3:.3g} ms, padded replay {replay * 1e3:.3g} ms"
