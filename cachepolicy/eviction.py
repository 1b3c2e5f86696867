"""Which resident graphs go first when bytes are short."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cachepolicy.cache import GraphEntry


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
