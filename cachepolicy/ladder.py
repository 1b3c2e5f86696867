"""The best set of buckets for a traffic histogram: exact, by dynamic programming.

The saving of a set splits along the ladder: the graph at `at` serves the sizes above the next smaller one. So the best set that ends at
`at` extends a best set that ends below it. `frontier` is exact for every byte budget (or number of graphs) at once; `priced` is exact
for one price per byte, in much less time. Both take bytes as the sum of `own` and the largest `top`, so they hold for private pools
and for arenas alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add

from cachepolicy.demand import Demand


@dataclass(frozen=True, slots=True)
class Choice:
    """A set of ladder positions, ascending: its bytes, and the seconds it saves net of its captures."""

    positions: tuple[int, ...]
    bytes: int
    net_s: float


@dataclass(frozen=True, slots=True, eq=False)
class _Partial:
    """A best set that ends at `at`; `bytes` are the own ones."""

    at: int
    bytes: int
    net_s: float
    count: int
    before: _Partial | None

    def positions(self) -> tuple[int, ...]:
        found = []
        partial: _Partial | None = self
        while partial is not None:
            found.append(partial.at)
            partial = partial.before
        return tuple(reversed(found))


def frontier(
    demand: Demand, horizon_s: float, budget: int, capture_s: Sequence[float], candidates: Sequence[int], graphs: int | None = None
) -> list[Choice]:
    """All sets that no other beats in both bytes and net seconds over the horizon, smallest first; the empty set is the first.

    Exact among `candidates` (positions, ascending) within `budget` bytes and, where given, a number of `graphs`.
    """
    prices = demand.prices
    ended: list[list[_Partial]] = []
    for index, at in enumerate(candidates):
        own = prices.own[at]
        room = budget - prices.top[at]
        found: list[_Partial] = []
        if own <= room:
            found.append(_Partial(at, own, horizon_s * demand.served(-1, at) - capture_s[at], 1, None))
        for below, partials in zip(candidates[:index], ended, strict=True):
            step = horizon_s * demand.served(below, at) - capture_s[at]
            found += [_Partial(at, p.bytes + own, p.net_s + step, p.count + 1, p) for p in partials if p.bytes + own <= room]
        ended.append(_undominated(found, graphs))
    choices = [Choice((), 0, 0.0)]
    choices += [Choice(p.positions(), p.bytes + prices.top[p.at], p.net_s) for partials in ended for p in partials]
    choices.sort(key=lambda choice: (choice.bytes, -choice.net_s))
    best: list[Choice] = []
    for choice in choices:
        if not best or choice.net_s > best[-1].net_s:
            best.append(choice)
    return best


def _undominated(partials: list[_Partial], graphs: int | None) -> list[_Partial]:
    """Without those that another beats in bytes and net seconds (and in number of graphs, where that is limited)."""
    partials.sort(key=lambda p: (p.bytes, -p.net_s))
    if graphs is None:
        kept: list[_Partial] = []
        for partial in partials:
            if not kept or partial.net_s > kept[-1].net_s:
                kept.append(partial)
        return kept
    by_count: dict[int, float] = {}
    kept = []
    for partial in partials:
        if partial.count <= graphs and all(partial.net_s > net for fewer, net in by_count.items() if fewer <= partial.count):
            by_count[partial.count] = partial.net_s
            kept.append(partial)
    return kept


class Pricing:
    """The best set for one price per byte, for as many prices as are tried: the savings between candidates are worked out once."""

    def __init__(self, demand: Demand, horizon_s: float, capture_s: Callable[[int], float], candidates: Sequence[int]) -> None:
        self._candidates = candidates
        self._own = [demand.prices.own[at] for at in candidates]
        self._top = [demand.prices.top[at] for at in candidates]
        self._capture = [capture_s(at) for at in candidates]
        saved = [[horizon_s * each for each in demand.served_above((-1, *candidates[:index]), at)] for index, at in enumerate(candidates)]
        self._first = [row[0] for row in saved]
        self._after = [row[1:] for row in saved]

    def best(self, per_byte: float) -> list[int]:
        """The set that saves most, net of its captures and of `per_byte` seconds a byte. Exact among the candidates."""
        net: list[float] = []
        before: list[int] = []
        total, last = 0.0, -1
        for index, first in enumerate(self._first):
            best, chosen = first, -1
            if net:
                extended = list(map(add, net, self._after[index]))
                longest = max(extended)
                if longest > best:
                    best, chosen = longest, extended.index(longest)
            best -= self._capture[index] + per_byte * self._own[index]
            net.append(best)
            before.append(chosen)
            if best - per_byte * self._top[index] > total:
                total, last = best - per_byte * self._top[index], index
        positions = []
        while last >= 0:
            positions.append(self._candidates[last])
            last = before[last]
        return positions[::-1]

    def within(self, budget: int, tries: int = 10) -> list[list[int]]:
        """Sets that fit `budget` bytes, for prices from nothing to about what just fits."""
        fitting: list[list[int]] = []
        low, high = 0.0, 0.0
        for _ in range(tries):
            price = 0.5 * (low + high)
            found = self.best(price)
            if self._bytes(found) <= budget:
                if found and found not in fitting:
                    fitting.append(found)
                if price == 0.0:
                    break
                high = price
            elif high > price:
                low = price
            else:
                low, high = high, 4.0 * high if high else 2.0 * max(self._first) / budget
        return fitting

    def _bytes(self, positions: Sequence[int]) -> int:
        chosen = [self._candidates.index(at) for at in positions]
        return sum(self._own[i] for i in chosen) + max((self._top[i] for i in chosen), default=0)


def candidates_of(demand: Demand, resident: Sequence[int], at_most: int) -> list[int]:
    """Positions worth considering: the resident ones, and such that between two of them lies about an equal share of traffic."""
    weights = demand.alone()
    share = sum(weights) / max(1, at_most - len(resident))
    chosen = set(resident)
    passed = 0.0
    for at, weight in enumerate(weights):
        passed += weight
        if passed >= share or (at == len(weights) - 1 and passed > 0.0):
            chosen.add(at)
            passed = 0.0
    return sorted(chosen)
