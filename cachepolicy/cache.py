"""The resident graphs under a byte budget.

The cache only decides: `insert`, `evict` and `resize` change its tables and **return** what the caller has to destroy.
Entries carry an opaque payload (the recording), which the cache never touches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
    exact_only: bool = False  # padding is not safe: serves its own size only
    pinned: bool = False  # by the operator
    in_use: int = 0  # replays running now
    hits: int = 0
    saved_s: float = 0.0
    captured_at: float = 0.0
    last_used: float = 0.0


class GraphCache:
    """Lookup, insert, pin and evict under a byte budget. Safe to call from several threads."""

    def __init__(self, budget: int, policy: EvictionPolicy | None = None) -> None:
        self._budget = budget
        self._policy = policy or LeastRecentlyUsed()
        self._tables: dict[Signature, dict[Bucket, GraphEntry]] = {}
        self._arenas: dict[str, int] = {}  # high-water bytes while an arena has members
        self._evictions = 0
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        entries = list(self)
        pinned = sum(entry.pinned for entry in entries)
        return f"<GraphCache {len(entries)} graphs, {self.used >> 20}/{self._budget >> 20} MiB, {pinned} pinned>"

    def __iter__(self) -> Iterator[GraphEntry]:
        with self._lock:
            return iter([entry for table in self._tables.values() for entry in table.values()])

    def __len__(self) -> int:
        with self._lock:
            return sum(len(table) for table in self._tables.values())

    @property
    def budget(self) -> int:
        """Bytes that resident graphs may take together."""
        return self._budget

    @property
    def used(self) -> int:
        """Bytes taken now: each entry's own, and each arena's high-water mark once."""
        with self._lock:
            return sum(entry.bytes for entry in self) + sum(self._arenas.values())

    def get(self, key: GraphKey) -> GraphEntry | None:
        """The entry of exactly this key."""
        table = self._tables.get(key.signature)
        return table.get(key.bucket) if table else None

    def acquire(self, signature: Signature, shape: Mapping[str, int], fit: Bucket) -> GraphEntry | None:
        """The smallest resident graph that may serve `shape`, marked in use; give it back with `release`.

        `fit` is the ladder's bucket for the shape: where it is resident, it is the answer.
        """
        with self._lock:
            table = self._tables.get(signature)
            if not table:
                return None
            found = table.get(fit)
            if found is None or (found.exact_only and fit.as_dict() != dict(shape)):
                covering = (e for e in table.values() if e.key.bucket.covers(shape) and not e.exact_only)
                found = min(covering, key=lambda e: e.key.bucket.volume, default=None)
                if found is None:
                    return None
            found.in_use += 1
            return found

    def release(self, entry: GraphEntry) -> None:
        """The replay that `acquire` was for has ended."""
        with self._lock:
            entry.in_use -= 1

    def record_hit(self, entry: GraphEntry, now: float, saved_s: float) -> None:
        """Count one replay and the seconds it saved against eager."""
        entry.hits += 1
        entry.saved_s += saved_s
        entry.last_used = now

    def insert(self, entry: GraphEntry, now: float) -> list[GraphEntry]:
        """Make `entry` resident; returns what was evicted for it.

        Raises DoesNotFit, and changes nothing, where even evicting all that may go leaves too little.
        """
        with self._lock:
            if self.get(entry.key) is not None:
                raise ValueError(f"already resident: {entry.key}")
            self._add(entry)
            victims: list[GraphEntry] = []
            for victim in self._policy.order([e for e in self if self._evictable(e) and e is not entry], now):
                if self.used <= self._budget:
                    break
                self._remove(victim)
                victims.append(victim)
            if self.used > self._budget:
                self._remove(entry)
                for victim in victims:
                    self._add(victim)
                raise DoesNotFit(f"{entry.key}: needs {entry.bytes + entry.arena_bytes} bytes, budget {self._budget}, used {self.used}")
            self._evictions += len(victims)
            entry.captured_at = entry.last_used = now
            return victims

    def evict(self, key: GraphKey) -> GraphEntry | None:
        """Remove one entry unless it is pinned or in use; returns it for destruction."""
        with self._lock:
            entry = self.get(key)
            if entry is None or not self._evictable(entry):
                return None
            self._remove(entry)
            self._evictions += 1
            return entry

    def drop(self, signature: Signature) -> list[GraphEntry]:
        """Remove all entries of a signature, pinned ones included (their model goes). None may be in use."""
        with self._lock:
            entries = list(self._tables.get(signature, {}).values())
            for entry in entries:
                self._remove(entry)
            return entries

    def resize(self, budget: int, now: float) -> list[GraphEntry]:
        """Change the budget; returns what no longer fits. Pinned and in-use entries stay even above it."""
        with self._lock:
            self._budget = budget
            victims: list[GraphEntry] = []
            for victim in self._policy.order([e for e in self if self._evictable(e)], now):
                if self.used <= budget:
                    break
                self._remove(victim)
                victims.append(victim)
            self._evictions += len(victims)
            return victims

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
                assert table, f"empty table of {signature}"
                for bucket, entry in table.items():
                    assert entry.key.signature == signature and entry.key.bucket == bucket
                    assert entry.in_use >= 0 and entry.bytes >= 0
            members = {entry.arena for entry in self if entry.arena}
            assert members == set(self._arenas), f"arenas {set(self._arenas)} have members {members}"

    @staticmethod
    def _evictable(entry: GraphEntry) -> bool:
        return not entry.pinned and entry.in_use == 0

    def _add(self, entry: GraphEntry) -> None:
        self._tables.setdefault(entry.key.signature, {})[entry.key.bucket] = entry
        if entry.arena:
            self._arenas[entry.arena] = max(self._arenas.get(entry.arena, 0), entry.arena_bytes)

    def _remove(self, entry: GraphEntry) -> None:
        table = self._tables[entry.key.signature]
        del table[entry.key.bucket]
        if not table:
            del self._tables[entry.key.signature]
        if entry.arena and not any(other.arena == entry.arena for other in self):
            del self._arenas[entry.arena]
