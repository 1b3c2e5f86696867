"""Drives the very classes that serve, cache and capture admission, with recorded or modelled traffic.

Time is the trace's. A capture takes effect between two steps and costs its seconds; a step of `size` rows is served by the smallest
resident graph that covers it where that is faster than eager. Traffic comes from a `Source`: recorded runs (open loop), or requests
whose steps take as long as the policy makes them take (closed loop, see cachepolicy/closed_loop.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cachepolicy.buckets import Bucket, BucketLadder
from cachepolicy.cache import DoesNotFit, GraphCache, GraphEntry
from cachepolicy.capture import Action, Capture, CaptureAdmission, Evict, Rebuild
from cachepolicy.costs import Prices
from cachepolicy.keys import GraphKey, Signature
from cachepolicy.reasons import RefusalReason

AXIS = "batch"


@dataclass(frozen=True, slots=True)
class Run:
    """From `time` on, `steps` steps of `model` with `size` rows each."""

    time: float
    model: int
    size: int
    steps: int


class Source(Protocol):
    """Where runs come from."""

    def runs(self) -> Iterator[Run]:
        """The next run, each time; a source may wait for `spent` before it knows the next one."""
        ...

    def spent(self, steps: int, seconds: float) -> None:
        """That many more steps of the last run took so long."""
        ...

    def stalled(self, seconds: float) -> bool:
        """Captures held the device up; whether the last run ends here, because they changed what comes next."""
        ...


@dataclass(frozen=True, slots=True)
class Recorded:
    """Runs whose times are given: an open loop."""

    recorded: Iterable[Run]

    def runs(self) -> Iterator[Run]:
        """As recorded."""
        return iter(self.recorded)

    def spent(self, steps: int, seconds: float) -> None:
        """Recorded times stay as they are."""

    def stalled(self, seconds: float) -> bool:
        """Recorded times stay as they are."""
        return False


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a graph after `step` steps were served. `size` is 0 for a rebuild."""

    step: int
    action: str  # capture | evict | rebuild
    model: int
    size: int = 0

    def plain(self) -> dict[str, int | str]:
        """The scorer's form."""
        event: dict[str, int | str] = {"step": self.step, "op": self.action, "model": self.model}
        return event if self.action == "rebuild" else event | {"size": self.size}


@dataclass(slots=True)
class Outcome:
    """What a policy reached. Seconds unless named otherwise."""

    saved_s: float = 0.0
    capture_s: float = 0.0
    eager_s: float = 0.0  # what all steps would have taken eagerly
    steps: int = 0
    replayed: int = 0
    rows: int = 0  # of replayed steps
    padding: int = 0  # rows added to them
    decisions: int = 0
    events: list[Event] = field(default_factory=list)

    @property
    def net_s(self) -> float:
        """Time saved against all-eager, captures charged."""
        return self.saved_s - self.capture_s

    def count(self, action: str) -> int:
        """How often something happened."""
        return sum(event.action == action for event in self.events)


def signature_of(model: int) -> Signature:
    """The simulated model's signature."""
    return Signature(environment="simulated", program=f"model-{model}", weights=f"model-{model}@0")


def ladder_of(sizes: int) -> BucketLadder:
    """All sizes from 1 on: a policy that chooses its own ladder chooses among them."""
    return BucketLadder.of(**{AXIS: tuple(range(1, sizes + 1))})


class Simulation:
    """One policy, one budget, one source."""

    def __init__(self, prices: Sequence[Prices], cache: GraphCache, admission: CaptureAdmission) -> None:
        """`prices` per model; position i is size i + 1."""
        self._prices = prices
        self._cache = cache
        self._admission = admission
        self._signatures = [signature_of(model) for model in range(len(prices))]
        self._ladders = [ladder_of(len(of_model.eager)) for of_model in prices]
        self._buckets = [tuple(ladder.buckets()) for ladder in self._ladders]
        self._model_of = {signature: model for model, signature in enumerate(self._signatures)}
        self._route: dict[tuple[int, int], tuple[GraphEntry | None, float]] = {}
        self.outcome = Outcome()

    def introduce(self, profiles: Mapping[int, Mapping[int, float]] | None = None) -> None:
        """Tell the policy of the models, and of the traffic that a profile promises: steps per model and size."""
        for model, signature in enumerate(self._signatures):
            expected = {self._buckets[model][size - 1]: steps for size, steps in (profiles or {}).get(model, {}).items()}
            self._admission.introduce(signature, self._ladders[model], 0.0, expected)

    def drive(self, source: Source) -> Outcome:
        """Serve everything."""
        outcome = self.outcome
        source.stalled(self.decide(0.0))
        for run in source.runs():
            left, now = run.steps, run.time
            signature, bucket = self._signatures[run.model], self._buckets[run.model][run.size - 1]
            eager = self._prices[run.model].eager[run.size - 1]
            while left:
                entry, gain = self._served(run.model, run.size)
                served = None if entry is None else entry.key.bucket
                limit = self._admission.steps_until_due(signature, bucket, served)
                steps = left if limit is None or limit > left else limit
                due = self._admission.count(signature, bucket, served, now, steps)
                outcome.steps += steps
                outcome.eager_s += steps * eager
                if entry is not None and served is not None:
                    outcome.saved_s += steps * gain
                    outcome.replayed += steps
                    outcome.rows += steps * run.size
                    outcome.padding += steps * (served.volume - run.size)
                    self._cache.record_hit(entry, now, steps * gain, steps)
                source.spent(steps, steps * (eager - gain))
                left -= steps
                if due and source.stalled(self.decide(now)):
                    break
        return outcome

    def _served(self, model: int, size: int) -> tuple[GraphEntry | None, float]:
        """The graph that serves, and the seconds it saves; remembered until the cache changes."""
        found = self._route.get((model, size))
        if found is None:
            entry = self._cache.acquire(self._signatures[model], {AXIS: size}, self._buckets[model][size - 1])
            gain = 0.0
            if entry is not None:
                self._cache.release(entry)
                prices = self._prices[model]
                gain = prices.eager[size - 1] - prices.replay[entry.key.bucket.volume - 1]
            found = self._route[model, size] = (entry, gain) if gain > 0.0 else (None, 0.0)
        return found

    def decide(self, now: float) -> float:
        """Ask the policy and do as it says; returns the seconds that captures took."""
        self.outcome.decisions += 1
        before = self.outcome.capture_s
        for action in self._admission.decide(self._cache, now):
            if not self._carry_out(action, now):
                break
            self._route.clear()
        return self.outcome.capture_s - before

    def _carry_out(self, action: Action, now: float) -> bool:
        match action:
            case Evict(key):
                return self._evict(key)
            case Capture(key):
                try:
                    self._capture(key, now)
                except DoesNotFit:
                    self._admission.refuse(key, RefusalReason.MEMORY_BUDGET, now)
                    return False
            case Rebuild(signature):
                keys = [entry.key for entry in self._cache.resident(signature)]
                for key in keys:
                    self._cache.evict(key)
                for key in keys:
                    self._insert(key, now)
                self.outcome.events.append(Event(self.outcome.steps, "rebuild", self._model_of[signature]))
        return True

    def _evict(self, key: GraphKey) -> bool:
        if self._cache.evict(key) is None:
            return False
        self._note("evict", key)
        return True

    def _capture(self, key: GraphKey, now: float) -> None:
        for victim in self._insert(key, now):
            self._note("evict", victim.key)
        self._note("capture", key)

    def _insert(self, key: GraphKey, now: float) -> list[GraphEntry]:
        model, at = self._model_of[key.signature], key.bucket.volume - 1
        prices = self._prices[model]
        top = prices.top[at]
        victims = self._cache.insert(GraphEntry(key, None, prices.own[at], f"model-{model}" if top else "", top), now)
        self.outcome.capture_s += prices.capture[at]
        return victims

    def _note(self, action: str, key: GraphKey) -> None:
        self.outcome.events.append(Event(self.outcome.steps, action, self._model_of[key.signature], key.bucket.volume))


def known_costs(prices: Sequence[Prices]) -> Iterator[tuple[Signature, dict[Bucket, tuple[float, float, float, int, int]]]]:
    """For `CostTable.load`: what a simulated worker would have measured."""
    for model, of_model in enumerate(prices):
        columns = zip(of_model.eager, of_model.replay, of_model.capture, of_model.own, of_model.top, strict=True)
        yield signature_of(model), dict(zip(ladder_of(len(of_model.eager)).buckets(), columns, strict=True))
