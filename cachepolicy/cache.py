"""The resident graphs under a byte budget.

The cache only decides: `insert`, `evict` and `resize` change its tables and **return** what the caller has to destroy.
Entries carry an opaque payload (the recording), which the cache never touches.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cachepolicy.buckets import Bucket
from cachepolicy.eviction import EvictionPolicy, LeastRecentlyUsed
from cachepolicy.keys import GraphKey, Signature


class DoesNotFit(Exception):
    """The entry is larger than the budget less what may not be evicted."""


@dataclass(slots=True, eq=False)
class GraphEntry:
    """One resident graph.

    `bytes` are its own (static buffers, the driver's bytes per node, a private pool); `arena_bytes` is the size of the shared pool
    as measured right after its capture: of all entries of an arena only the high-water mark counts.
    """

    key: GraphKey
    payload: object
    bytes: int
    arena: str = ""
    arena_bytes: int = 0
    exact_only: bool = False  # padding is not safe: serves its own size only,
    detail: str = ""  # for this reason
    pinned: bool = False  # by the operator
    in_use: int = 0  # replays running now
    hits: int = 0
    saved_s: float = 0.0
    captured_at: float = 0.0
    last_used: float = 0.0


@dataclass(slots=True)
class _Table:
    """Entries of one signature."""

    by_bucket: dict[Bucket, GraphEntry] = field(default_factory=dict)
    ascending: list[GraphEntry] = field(default_factory=list)  # by volume

    def add(self, entry: GraphEntry) -> None:
        self.by_bucket[entry.key.bucket] = entry
        insort(self.ascending, entry, key=_volume)

    def remove(self, entry: GraphEntry) -> None:
        del self.by_bucket[entry.key.bucket]
        self.ascending.remove(entry)

    def smallest(self, shape: Mapping[str, int], fit: Bucket) -> GraphEntry | None:
        """The smallest entry that may serve `shape`, whose ladder bucket is `fit`."""
        found = self.by_bucket.get(fit)
        if found is not None and not (found.exact_only and fit.as_dict() != dict(shape)):
            return found
        for at in range(bisect_left(self.ascending, fit.volume, key=_volume), len(self.ascending)):
            entry = self.ascending[at]
            if not entry.exact_only and entry.key.bucket.covers(shape):
                return entry
        return None


def _volume(entry: GraphEntry) -> int:
    return entry.key.bucket.volume


class GraphCache:
    """Lookup, insert, pin and evict under a byte budget. Safe to call from several threads."""

    def __init__(self, budget: int, policy: EvictionPolicy | None = None) -> None:
        self._budget = budget
        self._policy = policy or LeastRecentlyUsed()
        self._tables: dict[Signature, _Table] = {}
        self._arenas: dict[str, int] = {}  # high-water bytes while an arena has members
        self._own = 0  # bytes of all entries, arenas aside
        self.version = 0  # changes with the set of entries
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        entries = list(self)
        pinned = sum(entry.pinned for entry in entries)
        return f"<GraphCache {len(entries)} graphs, {self.used >> 20}/{self._budget >> 20} MiB, {pinned} pinned>"

    def __iter__(self) -> Iterator[GraphEntry]:
        with self._lock:
            return iter([entry for table in self._tables.values() for entry in table.ascending])

    def __len__(self) -> int:
        with self._lock:
            return sum(len(table.ascending) for table in self._tables.values())

    @property
    def budget(self) -> int:
        """Bytes that resident graphs may take together."""
        return self._budget

    @property
    def used(self) -> int:
        """Bytes taken now: each entry's own, and each arena's high-water mark once."""
        with self._lock:
            return self._own + sum(self._arenas.values())

    def arena_bytes(self, arena: str) -> int:
        """High-water bytes of an arena; 0 while it has no members, or for no arena ("")."""
        return self._arenas.get(arena, 0)

    def resident(self, signature: Signature) -> list[GraphEntry]:
        """All entries of a signature."""
        with self._lock:
            table = self._tables.get(signature)
            return list(table.ascending) if table else []

    def get(self, key: GraphKey) -> GraphEntry | None:
        """The entry of exactly this key."""
        table = self._tables.get(key.signature)
        return table.by_bucket.get(key.bucket) if table else None

    def acquire(self, signature: Signature, shape: Mapping[str, int], fit: Bucket) -> GraphEntry | None:
        """The smallest resident graph that may serve `shape`, marked in use; give it back with `release`.

        `fit` is the ladder's bucket for the shape: where it is resident, it is the answer.
        """
        with self._lock:
            table = self._tables.get(signature)
            if not table:
                return None
            found = table.smallest(shape, fit)
            if found is None:
                return None
            found.in_use += 1
            return found

    def release(self, entry: GraphEntry) -> None:
        """The replay that `acquire` was for has ended."""
        with self._lock:
            entry.in_use -= 1

    def record_hit(self, entry: GraphEntry, now: float, saved_s: float, replays: int = 1) -> None:
        """Count a replay, or several in a row, and the seconds saved against eager."""
        entry.hits += replays
        entry.saved_s += saved_s
        entry.last_used = now

    def insert(self, entry: GraphEntry, now: float) -> list[GraphEntry]:
        """Make `entry` resident; returns what was evicted for it.

        Raises DoesNotFit, and changes nothing, where even evicting all that may go leaves too little.
        """
        with self._lock:
            if self.get(entry.key) is not None:
                raise ValueError(f"already resident: {entry.key}")
            arenas = dict(self._arenas)
            self._add(entry)
            victims = self._victims(0, now, spare=entry)
            if self.used > self._budget:
                self._remove(entry)
                for victim in victims:
                    self._add(victim)
                self._arenas = arenas  # marks of arenas that were empty for a moment
                raise DoesNotFit(f"{entry.key}: needs {entry.bytes + entry.arena_bytes} bytes, budget {self._budget}, used {self.used}")
            entry.captured_at = entry.last_used = now
            return victims

    def evict(self, key: GraphKey) -> GraphEntry | None:
        """Remove one entry unless it is pinned or in use; returns it for destruction."""
        with self._lock:
            entry = self.get(key)
            if entry is None or not self._evictable(entry):
                return None
            self._remove(entry)
            return entry

    def drop(self, signature: Signature) -> list[GraphEntry]:
        """Remove all entries of a signature, pinned ones included (their model goes). None may be in use."""
        with self._lock:
            entries = self.resident(signature)
            for entry in entries:
                self._remove(entry)
            return entries

    def resize(self, budget: int, now: float) -> list[GraphEntry]:
        """Change the budget; returns what no longer fits. Pinned and in-use entries stay even above it."""
        with self._lock:
            self._budget = budget
            return self.make_room(0, now)

    def measure(self, arena: str, size: int) -> None:
        """An arena was measured: so many bytes it takes now. Nothing changes where it has no members."""
        with self._lock:
            if self._arenas.get(arena, size) != size:
                self._arenas[arena] = size
                self.version += 1

    def make_room(self, size: int, now: float) -> list[GraphEntry]:
        """Evict until `size` more bytes fit, as far as that goes; returns what went. Pinned and in-use entries stay."""
        with self._lock:
            return self._victims(size, now)

    def pin(self, key: GraphKey, pinned: bool) -> bool:
        """Protect an entry from eviction, or stop doing so; False where it is not resident."""
        with self._lock:
            entry = self.get(key)
            if entry is None:
                return False
            entry.pinned = pinned
            return True

    def check_integrity(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        with self._lock:
            for signature, table in self._tables.items():
                assert table.by_bucket, f"empty table of {signature}"
                assert table.ascending == sorted(table.by_bucket.values(), key=_volume)
                for bucket, entry in table.by_bucket.items():
                    assert entry.key.signature == signature and entry.key.bucket == bucket
                    assert entry.in_use >= 0 and entry.bytes >= 0
            members = {entry.arena for entry in self if entry.arena}
            assert self._own == sum(entry.bytes for entry in self)
            assert members == set(self._arenas), f"arenas {set(self._arenas)} have members {members}"

    @staticmethod
    def _evictable(entry: GraphEntry) -> bool:
        return not entry.pinned and entry.in_use == 0

    def _victims(self, size: int, now: float, spare: GraphEntry | None = None) -> list[GraphEntry]:
        """Remove what has to go for `size` more bytes. Asks for an order only where something has to: requests wait meanwhile."""
        victims: list[GraphEntry] = []
        if self.used + size <= self._budget:
            return victims
        for victim in self._policy.order([e for e in self if self._evictable(e) and e is not spare], now):
            self._remove(victim)
            victims.append(victim)
            if self.used + size <= self._budget:
                break
        return victims

    def _add(self, entry: GraphEntry) -> None:
        self.version += 1
        self._own += entry.bytes
        self._tables.setdefault(entry.key.signature, _Table()).add(entry)
        if entry.arena:
            self._arenas[entry.arena] = max(self._arenas.get(entry.arena, 0), entry.arena_bytes)

    def _remove(self, entry: GraphEntry) -> None:
        self.version += 1
        self._own -= entry.bytes
        table = self._tables[entry.key.signature]
        table.remove(entry)
        if not table.by_bucket:
            del self._tables[entry.key.signature]
        if entry.arena and not any(other.arena == entry.arena for other in self):
            del self._arenas[entry.arena]
