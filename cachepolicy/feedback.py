"""Whether sizes answer to speed, and what follows where they do.

A batch that requests join and leave (continuous batching) is as large as its steps are slow: rows under way = rows stepped per second x
seconds a step (Little's law). There a size that no graph covers costs more than an eager step. While it lasts more requests join than
leave, so the batch stays beyond the graph. Where steps come at a pace of their own, none of this holds.

`Pace` measures which it is. `Load` forecasts from rows stepped per second, which no graph changes, instead of from sizes, which graphs
change. Sizes are 1, 2, 3, …: position i of a list is size i + 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from math import exp, lgamma, log, sqrt

_LEAST = 5.0  # steps of one size, eager and replayed, that tell half of what there is to tell
_PAUSE = 2.0  # times what eager steps cost: whatever passes beyond it says nothing of their speed
_GRAIN = 200  # loads that are told apart, of those between one and e times as much
_KEPT = 500  # loads whose sizes are remembered
_FAR = 600.0  # an exponent near which floats end


class Pace:
    """Steps by size, eager and replayed: how many, what they cost, and the seconds until the next ones."""

    def __init__(self, count: int) -> None:
        self._steps = [0.0] * count, [0.0] * count  # eager, replayed
        self._cost = [0.0] * count, [0.0] * count
        self._passed = [0.0] * count, [0.0] * count
        self._top = 0  # sizes up to the largest seen
        self._since = 0.0
        self._last = -1
        self._kind = 0
        self._longest = 0.0

    def note(self, at: int, replayed: bool, steps: int, cost_s: float, eager_s: float, now: float) -> None:
        """Steps begin; what passed since the last ones began was theirs, up to a pause. For the request path."""
        if self._last >= 0:
            self._passed[self._kind][self._last] += min(now - self._since, self._longest)
        self._since, self._last, self._kind, self._longest = now, at, int(replayed), _PAUSE * eager_s
        self._top = max(self._top, at + 1)
        self._steps[self._kind][at] += steps
        self._cost[self._kind][at] += cost_s

    def totals(self) -> tuple[list[float], list[float]]:
        """Steps by size, and what they cost in seconds."""
        return self._summed(self._steps), self._summed(self._cost)

    def answer(self) -> float:
        """From 0.0, where as much time passes per step whatever it costs, to 1.0, where time passes as steps cost: each follows the last.

        Compared are eager and replayed steps of the same size.
        """
        weights = passed = cost = 0.0
        for at in range(self._top):
            eager, replayed = self._steps[0][at], self._steps[1][at]
            if eager and replayed and all(column[kind][at] > 0.0 for column in (self._passed, self._cost) for kind in (0, 1)):
                weight = 1.0 / (1.0 / eager + 1.0 / replayed)
                share = replayed / eager
                weights += weight
                passed += weight * log(share * self._passed[0][at] / self._passed[1][at])
                cost += weight * log(share * self._cost[0][at] / self._cost[1][at])
        return min(1.0, max(0.0, passed / cost)) * weights / (weights + _LEAST) if cost > 0.0 else 0.0

    def _summed(self, column: tuple[list[float], list[float]]) -> list[float]:
        return [eager + replayed for eager, replayed in zip(column[0][: self._top], column[1][: self._top], strict=True)]


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a load leads to, by size.

    `rates`: steps per second if each were replayed at its own size, each size counted as often as rows are in it. `uncovered`: seconds
    lost per second because a size is left to eager runs, all smaller ones being covered.
    """

    rates: Sequence[float]
    uncovered: Sequence[float]


class Response:
    """How many rows are under way at a load, in rows stepped per second.

    A birth and death process: rows come at a rate of their own, and each leaves the sooner the shorter its steps are. So the chances of
    sizes are products of load x seconds a step / size: Poisson's, where all steps take as long.
    """

    def __init__(self, eager: Sequence[float], replay: Sequence[float]) -> None:
        self._eager = eager
        self._covered = list(map(min, eager, replay))
        self._factorials = [lgamma(size + 1.0) for size in range(len(eager) + 1)]
        self._known: dict[int, Sizes] = {}

    def sizes(self, load: float) -> Sizes:
        """What a load leads to, to a quarter of a per cent of it."""
        grain = round(_GRAIN * log(load))
        found = self._known.get(grain)
        if found is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            found = self._known[grain] = self._sizes(exp(grain / _GRAIN))
        return found

    def steps(self, load: float, steps: Sequence[float], cost: Sequence[float]) -> list[float]:
        """Steps per second by size, where sizes that occurred took as long as they did."""
        reach = self._reach(load)
        pace = [spent / count if count else g for spent, count, g in zip_longest(cost, steps, self._covered, fillvalue=0.0)][:reach]
        chances = self._chances(load, pace)
        total = sum(chances)
        return [chance / total / seconds for chance, seconds in zip(chances[1:], pace, strict=True)]

    def _reach(self, load: float) -> int:
        """Sizes that have any chance, even if all are eager."""
        small = (size for size, seconds in enumerate(self._eager, 1) if size > load * seconds + 5.0 * sqrt(load * seconds) + 8.0)
        return next(small, len(self._eager))

    def _chances(self, load: float, pace: Sequence[float]) -> list[float]:
        """Chances of sizes 0, 1, 2, …, not summing up to one."""
        by = log(load)
        products = accumulate(map(log, pace), initial=0.0)
        logs = [by * size + product - self._factorials[size] for size, product in enumerate(products)]
        most = max(logs)
        return [exp(max(-_FAR, each - most)) for each in logs]

    def _sizes(self, load: float) -> Sizes:
        reach = self._reach(load)
        covered = self._chances(load, self._covered[:reach])
        eager = self._chances(load, self._eager[:reach])
        # With a graph for each size up to a top chances are as if covered up to it, and beyond it as if eager, in proportion to its own.
        upto, rows_upto = list(accumulate(covered)), list(accumulate(size * chance for size, chance in enumerate(covered)))
        beyond = [*accumulate(reversed(eager[1:]), initial=0.0)][::-1]
        rows_beyond = [*accumulate((size * eager[size] for size in range(reach, 0, -1)), initial=0.0)][::-1]
        rows = rows_upto[-1] / upto[-1]
        busy = 1.0 - covered[0] / upto[-1]
        lost = []  # seconds per second, by top: as much longer as more rows are under way
        for top in range(reach + 1):
            joined = covered[top] / eager[top]
            under_way = (rows_upto[top] + joined * rows_beyond[top]) / (upto[top] + joined * beyond[top])
            lost.append(busy * (under_way / rows - 1.0))
        return Sizes(
            rates=[busy * size * covered[size] / rows_upto[-1] / self._covered[size - 1] for size in range(1, reach + 1)],
            uncovered=[max(0.0, lost[size - 1] - lost[size]) for size in range(1, reach + 1)],
        )


@dataclass(frozen=True, slots=True)
class Remembered:
    """Sums over time that fade, by size: as `Sizes` has them, and steps per second, as expected and as seen."""

    rates: Sequence[float] = ()
    uncovered: Sequence[float] = ()
    expected: Sequence[float] = ()
    seen: Sequence[float] = ()


class Load:
    """Rows stepped per second, window by window, remembered as the sizes that they would lead to."""

    def __init__(self, memories: Sequence[float], window_s: float, now: float) -> None:
        self._memories = memories
        self._window_s = window_s
        self._born = self._begun = now
        self._before: tuple[list[float], list[float]] = [], []  # steps and cost by size, when the window began
        self._sums = [Remembered() for _ in memories]

    def ends(self, now: float) -> bool:
        """Whether the window is over, so that the next `recall` begins another."""
        return now - self._begun >= self._window_s

    def forget(self, pace: Pace, now: float) -> None:
        """Begin anew."""
        self._born = self._begun = now
        self._before = pace.totals()
        self._sums = [Remembered() for _ in self._memories]

    def lengths(self, now: float) -> list[float]:
        """Seconds that the sums of each memory stand for."""
        return [memory * (1.0 - exp((self._born - now) / memory)) for memory in self._memories]

    def recall(self, pace: Pace, response: Response, now: float) -> list[Remembered]:
        """What is remembered by now, by memory."""
        passed = now - self._begun
        totals = pace.totals()
        steps, cost = ([b - a for a, b in zip_longest(old, new, fillvalue=0.0)] for old, new in zip(self._before, totals, strict=True))
        rows = sum(size * count for size, count in enumerate(steps, 1))
        if passed <= 0.0 or rows <= 0.0:
            return self._sums
        load = rows / passed
        sizes = response.sizes(load)
        ends = self.ends(now)
        expected = response.steps(load, steps, cost) if ends else ()
        seen = [each / passed for each in steps] if ends else ()
        now_seen = sizes.rates, sizes.uncovered, expected, seen
        found = []
        for memory, old in zip(self._memories, self._sums, strict=True):
            kept = exp(-passed / memory)
            new = memory * (1.0 - kept)
            faded = (old.rates, old.uncovered, old.expected, old.seen)
            found.append(Remembered(*(_added(a, kept, b, new) for a, b in zip(faded, now_seen, strict=True))))
        if ends:
            self._sums, self._begun, self._before = found, now, totals
        return found


def _added(old: Iterable[float], kept: float, new: Iterable[float], seconds: float) -> list[float]:
    return [kept * a + seconds * b for a, b in zip_longest(old, new, fillvalue=0.0)]
