"""Which resident graphs go first when bytes are short."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cachepolicy.cache import GraphEntry
    from cachepolicy.keys import GraphKey


class EvictionPolicy(Protocol):
    """Orders candidates for eviction. The cache never offers pinned or in-use entries."""

    def order(self, candidates: Iterable[GraphEntry], now: float) -> Sequence[GraphEntry]:
        """Least worth keeping first."""
        ...


class LeastRecentlyUsed:
    """Evicts what was not replayed for longest; ties go to the larger entry."""

    def order(self, candidates: Iterable[GraphEntry], now: float) -> Sequence[GraphEntry]:
        """Oldest last use first."""
        return sorted(candidates, key=lambda entry: (entry.last_used, -entry.bytes))


class LeastFrequentlyUsed:
    """Evicts what was replayed least often since its capture."""

    def order(self, candidates: Iterable[GraphEntry], now: float) -> Sequence[GraphEntry]:
        """Fewest replays first."""
        return sorted(candidates, key=lambda entry: (entry.hits, entry.last_used))


class GreedyDualSize:
    """Greedy dual size with frequency: replays per byte, on top of the worth that the last victim had, so that old fame ages."""

    def __init__(self) -> None:
        self._inflation = 0.0
        self._base: dict[int, float] = {}  # inflation at the entry's capture or last reckoning, by identity
        self._hits: dict[int, int] = {}

    def order(self, candidates: Iterable[GraphEntry], now: float) -> Sequence[GraphEntry]:
        """Least inflated worth first."""
        entries = list(candidates)
        for entry in entries:
            if self._hits.get(id(entry)) != entry.hits:
                self._hits[id(entry)] = entry.hits
                self._base[id(entry)] = self._inflation
        worth = {id(entry): self._base[id(entry)] + (1 + entry.hits) / max(1, entry.bytes) for entry in entries}
        entries.sort(key=lambda entry: worth[id(entry)])
        if entries:
            self._inflation = max(self._inflation, worth[id(entries[0])])
        self._base = {known: self._base[known] for known in worth}
        self._hits = {known: self._hits[known] for known in worth}
        return entries


class MarginalSaving:
    """Evicts what saves least per byte against the next larger resident graph, by a forecast of traffic."""

    def __init__(self, worth: Callable[[GraphKey], float]) -> None:
        """`worth` is `PaybackAdmission.worth`: seconds saved per second."""
        self._worth = worth

    def order(self, candidates: Iterable[GraphEntry], now: float) -> Sequence[GraphEntry]:
        """Least saving per byte first; of equals, what was not replayed for longest."""
        return sorted(candidates, key=lambda entry: (self._worth(entry.key) / max(1, entry.bytes), entry.last_used))
