"""The ledger: what graphs take of the device, what evicting them gives back, and what the driver keeps for later graphs.

Figures of arenas are the allocator's, those of the device the driver's. What the driver holds per graph lies outside the allocator, and
most of it stays with the driver when a graph is destroyed: it is told apart, since no eviction brings it back to the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from cachepolicy.cache import GraphCache, GraphEntry
from cachepolicy.costs import CostTable
from cachepolicy.keys import GraphKey
from service.backends.base import Backend, DeviceMemory, Recording

_KEPT = 0.9  # share of a destroyed graph's driver bytes that the driver keeps and uses again (docs/decisions/0026)


@dataclass(frozen=True, slots=True)
class Returned:
    """Bytes that go back to the device, and bytes that the driver keeps for later graphs."""

    freed: int
    kept: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes now. `used` = `own` + `arenas`, and is what the budget counts; `reusable` is the driver's, beside it."""

    own: int  # static buffers, private pools and driver bytes of resident graphs
    arenas: dict[str, int]
    budget: int
    reusable: int
    device: DeviceMemory

    @property
    def used(self) -> int:
        """What the budget counts."""
        return self.own + sum(self.arenas.values())

    @property
    def total(self) -> int:
        """What the device lacks because of graphs."""
        return self.used + self.reusable


class Ledger:
    """Books recordings in and out. Changed by the capturer's thread only; `report` may come from any."""

    def __init__(self, backend: Backend, cache: GraphCache) -> None:
        self._backend = backend
        self._cache = cache
        self._driver = 0  # bytes that live recordings have from the driver
        self._reusable = 0.0

    @property
    def reusable(self) -> int:
        """Bytes that the driver keeps for later graphs."""
        return int(self._reusable)

    def recorded(self, recording: Recording) -> None:
        """A recording was made; it takes what the driver had kept, first."""
        self._driver += recording.driver_bytes
        self._reusable = max(0.0, self._reusable - recording.driver_bytes)

    def close(self, recording: Recording) -> None:
        """Destroy a recording and measure its arena anew."""
        recording.close()
        self._driver -= recording.driver_bytes
        self._reusable += _KEPT * recording.driver_bytes
        self.measure(recording.arena)

    def measure(self, arena: str) -> None:
        """Tell the cache what an arena takes now: captures that were refused may have made it larger, too."""
        if arena:
            self._cache.measure(arena, self._backend.arena_bytes(arena))

    @property
    def capacity(self) -> int:
        """Bytes of the whole device: more than any budget can mean."""
        return self._backend.memory().total

    def lacks(self, size: int) -> int:
        """How many bytes the device is short of, for an allocation of this size; 0 where it has enough."""
        return max(0, size - self._backend.memory().available)

    def returns(self, entries: Collection[GraphEntry]) -> Returned:
        """What evicting these graphs would give back: of an arena nothing, unless they are all that live in it."""
        leaving = Counter(entry.arena for entry in entries if entry.arena)
        living = Counter(entry.arena for entry in self._cache if entry.arena)
        emptied = sum(self._cache.arena_bytes(arena) for arena, count in leaving.items() if count == living[arena])
        kept = sum(int(_KEPT * _driver_bytes(entry)) for entry in entries)
        return Returned(emptied + sum(entry.bytes for entry in entries) - kept, kept)

    def report(self) -> MemoryReport:
        """Everything now."""
        entries = list(self._cache)
        arenas = {arena: self._cache.arena_bytes(arena) for arena in {entry.arena for entry in entries if entry.arena}}
        own = sum(entry.bytes for entry in entries)
        return MemoryReport(own, arenas, self._cache.budget, self.reusable, self._backend.memory())


def predicted_bytes(costs: CostTable, cache: GraphCache, key: GraphKey) -> int | None:
    """What a graph would add to the cache: its own bytes, and what its arena grows by. None where nothing was measured to tell it by."""
    if costs.capture(key.signature, key.bucket) is None:
        return None
    prices = costs.prices(key.signature, [key.bucket])
    resident = cache.resident(key.signature)
    high = cache.arena_bytes(resident[0].arena) if resident else 0
    return prices.own[0] + max(0, prices.top[0] - high)


def _driver_bytes(entry: GraphEntry) -> int:
    recording = getattr(entry.payload, "recording", None)
    return 0 if recording is None else recording.driver_bytes
