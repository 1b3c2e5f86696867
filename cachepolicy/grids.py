"""A good set of buckets on several axes: greedy twice, then exchanges of one bucket for another as long as they help.

On one axis `cachepolicy.ladder` is exact. On several no order of buckets splits a set's saving, so this is a search;
docs/decisions/0021 has its gap to the optimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import add

_EXCHANGES = 40  # at most


@dataclass(frozen=True, slots=True)
class Grid:
    """Candidates by number: their `own` bytes and their arena's (`top`, of which a set takes the largest).

    A size is served by the first of the set that covers it, so candidates are to be numbered by volume. `serving` has for each size of
    traffic the candidates that cover it, ascending, with the seconds per second that each saves.
    """

    serving: Sequence[Sequence[tuple[int, float]]]
    own: Sequence[int]
    top: Sequence[int]

    def best(self, budget: int, graphs: int) -> set[int]:
        """The best set found within so many bytes and graphs."""
        merged = Grid(self._merged(), self.own, self.top)
        columns: list[list[tuple[int, float]]] = [[] for _ in self.own]
        for row, covering in enumerate(merged.serving):
            for at, gain in covering:
                columns[at].append((row, gain))
        search = _Search(merged, columns, budget, graphs)
        return max((search.exchanged(search.greedy(per_byte)) for per_byte in (True, False)), key=merged.saving)

    def saving(self, chosen: set[int]) -> float:
        """Seconds saved per second."""
        return sum(next((gain for at, gain in row if at in chosen), 0.0) for row in self.serving)

    def bytes(self, chosen: Iterable[int]) -> int:
        """Bytes of a set."""
        held = list(chosen)
        return sum(self.own[at] for at in held) + max((self.top[at] for at in held), default=0)

    def _merged(self) -> list[list[tuple[int, float]]]:
        """Sizes that the same candidates cover as one."""
        sums: dict[tuple[int, ...], list[float]] = {}
        for row in self.serving:
            candidates, gains = tuple(at for at, _ in row), [gain for _, gain in row]
            sums[candidates] = list(map(add, sums[candidates], gains)) if candidates in sums else gains
        return [list(zip(candidates, gains, strict=True)) for candidates, gains in sums.items()]


@dataclass(frozen=True, slots=True)
class _Search:
    grid: Grid
    columns: Sequence[Sequence[tuple[int, float]]]  # by candidate, the sizes that it covers
    budget: int
    graphs: int

    def greedy(self, per_byte: bool) -> set[int]:
        """What adds most, or most per byte, comes first."""
        chosen: set[int] = set()
        while True:
            used = self.grid.bytes(chosen)
            worth = [
                (added / max(1, self.grid.bytes({*chosen, at}) - used) if per_byte else added, at) for at, added in self._additions(chosen)
            ]
            if not worth:
                return chosen
            chosen.add(max(worth)[1])

    def exchanged(self, chosen: set[int]) -> set[int]:
        """The best addition, or exchange of one for another, again and again."""
        for _ in range(_EXCHANGES):
            best, most = chosen, self.grid.saving(chosen) * (1.0 + 1e-9)
            for gone in (None, *sorted(chosen)):
                rest = chosen - {gone}
                saved = self.grid.saving(rest)
                for at, added in self._additions(rest):
                    if saved + added > most:
                        best, most = {*rest, at}, saved + added
            if best is chosen:
                break
            chosen = best
        return chosen

    def _additions(self, chosen: set[int]) -> Iterator[tuple[int, float]]:
        """What fits beside a set and adds to it, with the seconds per second that it adds."""
        if len(chosen) >= self.graphs:
            return
        serving = [next(((at, gain) for at, gain in row if at in chosen), (len(self.columns), 0.0)) for row in self.grid.serving]
        for at, column in enumerate(self.columns):
            if at not in chosen and self.grid.bytes({*chosen, at}) <= self.budget:
                added = sum(gain - serving[row][1] for row, gain in column if at < serving[row][0])
                if added > 0.0:
                    yield at, added
