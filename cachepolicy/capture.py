"""Admission of captures: which graphs are worth recording now, and what has to go first.

The request path only counts (`count`, constant time). Whatever takes thought happens in `decide`, which the capturer's thread calls.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from cachepolicy.buckets import Bucket, BucketLadder
from cachepolicy.cache import GraphCache
from cachepolicy.costs import CostTable
from cachepolicy.demand import Demand, Outlook, chained, neighbours
from cachepolicy.keys import GraphKey, Signature
from cachepolicy.planning import Holding, Move, Plan
from cachepolicy.reasons import RefusalReason


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet: traffic has lost `lost_s` seconds for want of this graph, and `needed_s` would pay for it."""

    lost_s: float
    needed_s: float


@dataclass(frozen=True, slots=True)
class Capture:
    """Record this graph; it is expected to save `gain_s` seconds, net of its capture, over the planning horizon."""

    key: GraphKey
    gain_s: float


@dataclass(frozen=True, slots=True)
class Refuse:
    """This graph may not exist for now."""

    reason: RefusalReason


@dataclass(frozen=True, slots=True)
class Evict:
    """Destroy this graph before going on with the plan."""

    key: GraphKey


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Drop the signature's arena and record its resident graphs again, so that memory above the largest of them comes back."""

    signature: Signature


Decision = Wait | Capture | Refuse
Action = Evict | Rebuild | Capture


class CaptureAdmission(Protocol):
    """Decides which graphs come and go. Times are seconds of one monotonic clock. Safe to call from several threads."""

    def introduce(self, signature: Signature, ladder: BucketLadder, now: float, profile: Mapping[Bucket, float] | None = None) -> None:
        """A model is up: its ladder, and the runs per bucket that its traffic profile expects. Runs are counted from now on."""
        ...

    def count(self, signature: Signature, fit: Bucket, served: Bucket | None, now: float, steps: int = 1) -> bool:
        """Note `steps` runs whose ladder bucket is `fit`, replayed at `served` or run eagerly (None).

        Constant time, for the request path. True: enough was lost since the last `decide` that the capturer should call it.
        """
        ...

    def steps_until_due(self, signature: Signature, fit: Bucket, served: Bucket | None) -> int | None:
        """How many such runs in a row make a decision due; None: no number of them. For drivers that count runs in bulk."""
        ...

    def decide(self, cache: GraphCache, now: float) -> Sequence[Action]:
        """What to do now, in order; empty where all is well. Stop at the first action that cannot be carried out."""
        ...

    def judge(self, key: GraphKey, now: float) -> Decision:
        """What is thought of one graph now; changes nothing."""
        ...

    def refuse(self, key: GraphKey, reason: RefusalReason, now: float) -> None:
        """A capture or its verification failed: leave the graph alone until the refusal has aged."""
        ...

    def pardon(self, key: GraphKey) -> None:
        """The graph was made after all, by somebody's order: forget that it was refused."""
        ...

    def forget(self, signature: Signature) -> None:
        """The signature's model is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How sure the policy wants to be. One setting for every model and device; times are seconds.

    A graph is worth its capture where it pays within the horizon: `trust_s` from the start, because a replica that was just deployed is
    not about to end, and as long again as `lindy` times its signature's age, up to `horizon_s`.
    """

    trust_s: float = 25.0
    lindy: float = 1.0
    horizon_s: float = 900.0
    min_gain: float = 0.05  # a replay has to be faster than the eager run of its own size by this share
    quantum: float = 0.05  # reconsider when this share of a capture's time was lost,
    backoff: float = 0.02  # more by this for each time that nothing was to be done,
    slowest: float = 0.7  # up to this
    refusal_s: float = 600.0  # doubled for each refusal in a row
    hysteresis: float = 1.5  # what takes another graph's place has to gain this many captures beyond its own
    moves: int = 24  # at most, in one decision


@dataclass(slots=True)
class _Refusal:
    reason: RefusalReason
    until: float
    times: int = 1


@dataclass(slots=True)
class _Known:
    """What the policy holds of a signature."""

    holding: Holding
    price_version: int
    looked_at: bool = False
    due_at: float = 0.0  # lost seconds that make a decision due
    idle: int = 0  # decisions in a row that changed nothing
    refusals: dict[int, _Refusal] = field(default_factory=dict)


class PaybackAdmission:
    """Captures what pays for itself, evicting what saves less for its bytes (docs/design.md, 3; docs/decisions/0020)."""

    def __init__(self, costs: CostTable, patience: Patience = Patience(), outlook: Outlook | None = None) -> None:
        self._costs = costs
        self._patience = patience
        self._outlook = outlook or Outlook()
        self._known: dict[Signature, _Known] = {}
        self._turn: _Known | None = None  # whose runs come in a row just now
        self._cache_version = -1
        self._lock = threading.Lock()  # decisions; counting needs none

    # -- request path

    def count(self, signature: Signature, fit: Bucket, served: Bucket | None, now: float, steps: int = 1) -> bool:
        """See CaptureAdmission. Runs of a signature that was not introduced are not counted."""
        known = self._known.get(signature)
        if known is None:
            return False
        demand = known.holding.demand
        position = demand.position
        before, self._turn = self._turn, known
        if before is not known and before is not None:
            before.holding.demand.end_turn()
        return demand.count(position[fit], None if served is None else position.get(served), steps, now) >= known.due_at

    def steps_until_due(self, signature: Signature, fit: Bucket, served: Bucket | None) -> int | None:
        """See CaptureAdmission."""
        known = self._known[signature]
        demand = known.holding.demand
        loss = demand.loss(demand.position[fit], None if served is None else demand.position[served])
        return None if loss <= 0.0 else max(1, -int((demand.lost - known.due_at) // loss))

    # -- elsewhere

    def introduce(self, signature: Signature, ladder: BucketLadder, now: float, profile: Mapping[Bucket, float] | None = None) -> None:
        """See CaptureAdmission."""
        with self._lock:
            buckets = chained(ladder)
            demand = Demand(buckets, self._costs.prices(signature, buckets), self._outlook, now)
            if profile:
                demand.expect(profile)
            known = _Known(Holding(demand), self._costs.version(signature))
            self._set_due(known)
            self._known = {**self._known, signature: known}
            self._cache_version = -1

    def forget(self, signature: Signature) -> None:
        """See CaptureAdmission."""
        with self._lock:
            self._known = {other: known for other, known in self._known.items() if other != signature}

    def refuse(self, key: GraphKey, reason: RefusalReason, now: float) -> None:
        """See CaptureAdmission. A refusal ages; one that comes back lasts twice as long."""
        with self._lock:
            known = self._known.get(key.signature)
            if known is None:
                return
            at = known.holding.demand.position[key.bucket]
            known.due_at = 0.0  # what was measured on the way may have changed the costs
            times = known.refusals[at].times + 1 if at in known.refusals else 1
            known.refusals[at] = _Refusal(reason, now + self._patience.refusal_s * 2 ** min(times - 1, 8), times)

    def pardon(self, key: GraphKey) -> None:
        """See CaptureAdmission. Whether it pays is asked as of any other."""
        with self._lock:
            known = self._known.get(key.signature)
            if known is not None:
                known.refusals.pop(known.holding.demand.position[key.bucket], None)

    def judge(self, key: GraphKey, now: float) -> Decision:
        """See CaptureAdmission. Judged by the last forecast, as if there were room."""
        known = self._known.get(key.signature)
        at = None if known is None else known.holding.demand.position.get(key.bucket)
        if known is None or at is None:
            return Wait(0.0, 0.0)
        refusal = known.refusals.get(at)
        if refusal is not None and now < refusal.until:
            return Refuse(refusal.reason)
        demand = known.holding.demand
        if not self._profitable(demand, at):
            return Refuse(RefusalReason.UNPROFITABLE)
        gain_s = self._horizon(demand, now) * self._marginal(known.holding, at)
        needed_s = demand.prices.capture[at]
        return Capture(key, gain_s - needed_s) if gain_s > needed_s else Wait(gain_s, needed_s)

    def worth(self, key: GraphKey) -> float:
        """Seconds per second that a resident graph saves against the next larger one, by the last forecast."""
        known = self._known.get(key.signature)
        at = None if known is None else known.holding.demand.position.get(key.bucket)
        return 0.0 if known is None or at is None else self._marginal(known.holding, at)

    def decide(self, cache: GraphCache, now: float) -> Sequence[Action]:
        """See CaptureAdmission. Looks at the signature that lost most since it was last looked at, first of all at promised traffic."""
        with self._lock:
            if not self._known:
                return ()
            self._mirror(cache)
            focuses = self._focuses(now)
            holdings = [known.holding for known in self._known.values()]
            horizon_s = max(self._horizon(known.holding.demand, now) for known in focuses)
            for holding in holdings:
                holding.horizon_s = horizon_s
            plan = Plan(holdings, cache.used, cache.budget, self._patience.hysteresis)
            moved = [self._improve(plan, known, now) for known in focuses]
            if not any(moved) and not self._lend(holdings, focuses[0], cache, now):
                return ()
            self._cache_version = -1  # what is planned is not yet so
            return self._actions(now)

    def _focuses(self, now: float) -> list[_Known]:
        """The signatures to look at, with new forecasts. The oldest forecast is made anew too: its graphs may be due to go."""
        fresh = {signature: known for signature, known in self._known.items() if not known.looked_at}
        for signature, known in fresh.items():
            known.looked_at = True
            self._refresh(signature, known, now)
            self._set_due(known)
        promised = [known for known in fresh.values() if known.holding.demand.trust]
        if promised:
            return promised
        signature, focus = max(self._known.items(), key=lambda item: item[1].holding.demand.lost)
        self._refresh(signature, focus, now)
        stalest = min(self._known, key=lambda other: self._known[other].holding.demand.folded)
        self._refresh(stalest, self._known[stalest], now)
        return [focus]

    def _improve(self, plan: Plan, known: _Known, now: float) -> bool:
        """Better the plan for one signature; whether it changed."""
        patience, demand = self._patience, known.holding.demand
        demand.lost = 0.0
        shapes = known.idle & (known.idle + 1) == 0  # the less there is to do, the rarer: after 0, 1, 3, 7… idle decisions
        allowed = partial(self._allowed, known, now)
        moved = False
        for _ in range(patience.moves):
            move = plan.best_move(known.holding, allowed)
            if move is not None:
                plan.apply(move)
            elif shapes and plan.reshape(known.holding, allowed):
                shapes = False
            else:
                break
            moved = True
        known.idle = 0 if moved else known.idle + 1
        self._set_due(known)
        return moved

    def _lend(self, holdings: list[Holding], focus: _Known, cache: GraphCache, now: float) -> bool:
        """Let a signature have others' bytes for a while, where that pays for its captures and for theirs when they return."""
        move = self._lend_for_a_moment(holdings, focus, cache, now) or self._lend_for_a_turn(holdings, focus, cache, now)
        if move is None:
            return False
        focus.idle = 0
        self._set_due(focus)
        return True

    def _lend_for_a_moment(self, holdings: list[Holding], focus: _Known, cache: GraphCache, now: float) -> Move | None:
        """To a busy one, bytes of idle ones. What came within the moment stays, or busy ones would take them from each other in turn."""
        if focus.holding.demand.activity(now) <= 1.0:
            return None
        moment_s = self._outlook.moment_s
        for holding in holdings:
            holding.horizon_s = moment_s * holding.demand.activity(now)
        plan = Plan(holdings, cache.used, cache.budget, self._patience.hysteresis, returning=True, since=now - moment_s)
        return self._applied(plan, focus, now)

    def _lend_for_a_turn(self, holdings: list[Holding], focus: _Known, cache: GraphCache, now: float) -> Move | None:
        """To the one whose runs come in a row, bytes of all others: none of theirs come before its turn is over."""
        demand = focus.holding.demand
        rate = sum(demand.rates)
        if focus is not self._turn or not rate or demand.turn * max(demand.possible) <= min(demand.prices.capture):
            return None
        for holding in holdings:
            holding.horizon_s = 0.0
        focus.holding.horizon_s = demand.turn / rate
        return self._applied(Plan(holdings, cache.used, cache.budget, 0.0, returning=True), focus, now)

    def _applied(self, plan: Plan, focus: _Known, now: float) -> Move | None:
        move = plan.best_move(focus.holding, partial(self._allowed, focus, now))
        if move is not None:
            plan.apply(move)
        return move

    def _mirror(self, cache: GraphCache) -> None:
        """Take over what is resident, where that changed."""
        if cache.version == self._cache_version:
            return
        self._cache_version = cache.version
        for signature, known in self._known.items():
            entries = cache.resident(signature)
            known.holding.mirror(entries, cache.arena_bytes(entries[0].arena) if entries else 0)

    def _refresh(self, signature: Signature, known: _Known, now: float) -> None:
        demand = known.holding.demand
        version = self._costs.version(signature)
        if version != known.price_version:
            known.price_version = version
            demand.price(self._costs.prices(signature, demand.buckets))
        demand.forecast(now)
        known.holding.stale()

    def _set_due(self, known: _Known) -> None:
        demand = known.holding.demand
        if not any(demand.prices.eager):  # nothing was measured yet: look again at the next run
            known.due_at = 0.0
            return
        cheapest = min(demand.prices.capture)
        patience = self._patience
        known.due_at = cheapest * min(patience.quantum + patience.backoff * known.idle, patience.slowest)

    def _horizon(self, demand: Demand, now: float) -> float:
        patience, profile_s = self._patience, self._outlook.profile_s
        if demand.trust and not demand.observed:
            return profile_s  # what a profile promises is to be captured now or never
        return min(patience.horizon_s, patience.trust_s + patience.lindy * (demand.age(now) + demand.trust * profile_s))

    def _allowed(self, known: _Known, now: float, at: int) -> bool:
        refusal = known.refusals.get(at)
        return (refusal is None or now >= refusal.until) and self._profitable(known.holding.demand, at)

    def _profitable(self, demand: Demand, at: int) -> bool:
        return demand.prices.replay[at] * (1.0 + self._patience.min_gain) <= demand.prices.eager[at]

    @staticmethod
    def _marginal(holding: Holding, at: int) -> float:
        below, above = neighbours(holding.resident, at)
        return holding.demand.gain(below, at, above)

    def _actions(self, now: float) -> list[Action]:
        evictions: list[Action] = []
        rebuilds: list[Action] = []
        captures: list[Action] = []
        for signature, known in self._known.items():
            holding = known.holding
            planned = set(holding.resident)
            buckets = holding.demand.buckets
            evictions += [Evict(GraphKey(signature, buckets[at])) for at in holding.entries if at not in planned]
            if holding.rebuild:
                rebuilds.append(Rebuild(signature))
            horizon = self._horizon(holding.demand, now)
            for at in sorted(planned.difference(holding.entries), reverse=True):
                gain_s = horizon * self._marginal(holding, at) - holding.demand.prices.capture[at]
                captures.append(Capture(GraphKey(signature, buckets[at]), gain_s))
        return [*evictions, *rebuilds, *captures]
