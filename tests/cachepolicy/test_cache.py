"""The cache under every order of operations: bytes within the budget, nothing lost, nothing freed twice."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from cachepolicy.cache import DoesNotFit, GraphCache, GraphEntry
from cachepolicy.eviction import EvictionPolicy, GreedyDualSize, LeastFrequentlyUsed, LeastRecentlyUsed
from cachepolicy.keys import GraphKey
from tests.cachepolicy.worlds import bucket, entry, ladder, signature

BUDGET = 100
MODELS = st.sampled_from(["a", "b", "c"])
SIZES = st.integers(1, 8)


def set_bytes(entries: Iterable[GraphEntry], high: dict[str, int]) -> int:
    """Own bytes, and each arena's high-water mark once."""
    held = list(entries)
    return sum(e.bytes for e in held) + sum(high[arena] for arena in {e.arena for e in held if e.arena})


class CacheMachine(RuleBasedStateMachine):
    """Compares the cache with a dictionary. Every change is written down; at the end the record replays to the same state."""

    replays = Bundle("replays")

    @initialize(policy=st.sampled_from([LeastRecentlyUsed, LeastFrequentlyUsed, GreedyDualSize]))
    def start(self, policy: type[EvictionPolicy]) -> None:
        self.cache = GraphCache(BUDGET, policy())
        self.model: dict[GraphKey, GraphEntry] = {}
        self.high: dict[str, int] = {}
        self.destroyed: list[GraphEntry] = []
        self.record: list[tuple[str, GraphEntry]] = []
        self.now = 0.0

    def gone(self, victims: Iterable[GraphEntry]) -> None:
        for victim in victims:
            assert self.model.pop(victim.key) is victim, "destroyed what was not resident"
            assert all(victim is not other for other in self.destroyed), "destroyed twice"
            self.destroyed.append(victim)
            self.record.append(("evict", victim))
        members = {e.arena for e in self.model.values()}
        self.high = {arena: mark for arena, mark in self.high.items() if arena in members}

    @rule(name=MODELS, size=SIZES, own=st.integers(1, 40), top=st.integers(0, 50))
    def insert(self, name: str, size: int, own: int, top: int) -> None:
        self.now += 1.0
        new = entry(size, name=name, bytes=own, arena=name if top else "", arena_bytes=top)
        if new.key in self.model:
            with pytest.raises(ValueError, match="already resident"):
                self.cache.insert(new, self.now)
            return
        before = {key: (e.pinned, e.in_use) for key, e in self.model.items()}
        try:
            victims = self.cache.insert(new, self.now)
        except DoesNotFit:
            assert {e.key for e in self.cache} == set(before), "a failed insert changed something"
            return
        assert all(before[victim.key] == (False, 0) for victim in victims)
        self.model[new.key] = new
        if new.arena:
            self.high[new.arena] = max(self.high.get(new.arena, 0), new.arena_bytes)
        self.record.append(("insert", new))
        self.gone(victims)

    @rule(target=replays, name=MODELS, size=SIZES)
    def acquire(self, name: str, size: int) -> GraphEntry | None:
        found = self.cache.acquire(signature(name), {"batch": size}, bucket(size))
        covering = [key.bucket["batch"] for key in self.model if key.signature == signature(name) and key.bucket["batch"] >= size]
        if found is None:
            assert not covering
        else:
            assert found.key.bucket["batch"] == min(covering), "not the smallest covering graph"
            self.now += 1.0
            self.cache.record_hit(found, self.now, 0.001)
        return found

    @rule(replay=consumes(replays))
    def release(self, replay: GraphEntry | None) -> None:
        if replay is not None:
            self.cache.release(replay)

    @rule(name=MODELS, size=SIZES)
    def evict(self, name: str, size: int) -> None:
        key = GraphKey(signature(name), bucket(size))
        known = self.model.get(key)
        victim = self.cache.evict(key)
        assert (victim is not None) == (known is not None and not known.pinned and not known.in_use)
        self.gone([victim] if victim else [])

    @rule(name=MODELS, size=SIZES, pinned=st.booleans())
    def pin(self, name: str, size: int, pinned: bool) -> None:
        key = GraphKey(signature(name), bucket(size))
        assert self.cache.pin(key, pinned) == (key in self.model)

    @rule(size=st.integers(0, BUDGET))
    def make_room(self, size: int) -> None:
        before = {key: (e.pinned, e.in_use) for key, e in self.model.items()}
        victims = self.cache.make_room(size, self.now)
        assert all(before[victim.key] == (False, 0) for victim in victims)
        self.gone(victims)
        if self.cache.used + size > self.cache.budget:
            assert all(e.pinned or e.in_use for e in self.model.values())

    @rule(name=MODELS)
    def drop(self, name: str) -> None:
        if any(e.in_use for e in self.model.values() if e.key.signature == signature(name)):
            return
        dropped = self.cache.drop(signature(name))
        assert {e.key for e in dropped} == {key for key in self.model if key.signature == signature(name)}
        self.gone(dropped)

    @rule(name=MODELS, size=st.integers(0, 50))
    def measure(self, name: str, size: int) -> None:
        """An arena that was taken for larger than it is."""
        size = min(size, self.high.get(name, 0))
        self.cache.measure(name, size)
        if name in self.high:
            self.high[name] = size
            self.record.append((f"measure {size}", next(e for e in self.model.values() if e.arena == name)))

    @rule(budget=st.integers(1, BUDGET))
    def resize(self, budget: int) -> None:
        before = {key: (e.pinned, e.in_use) for key, e in self.model.items()}
        victims = self.cache.resize(budget, self.now)
        assert all(before[victim.key] == (False, 0) for victim in victims)
        self.gone(victims)
        if self.cache.used > budget:
            assert all(e.pinned or e.in_use for e in self.model.values())
            self.gone(self.cache.resize(BUDGET, self.now))

    @invariant()
    def bytes_and_entries_agree(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check_integrity()
        assert {e.key: e for e in self.cache} == self.model
        assert self.cache.used == set_bytes(self.model.values(), self.high)
        assert self.cache.used <= self.cache.budget
        assert len(self.cache) == len(self.model)

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for held in self.model.values():
            held.pinned, held.in_use = False, 0
        again = GraphCache(1 << 40)
        for op, changed in self.record:
            if op == "insert":
                assert again.insert(changed, 0.0) == []
            elif op.startswith("measure"):
                again.measure(changed.arena, int(op.split()[1]))
            else:
                changed.pinned, changed.in_use = False, 0
                assert again.evict(changed.key) is changed
        assert {e.key for e in again} == set(self.model)
        assert again.used == self.cache.used


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCacheMachine = CacheMachine.TestCase


@pytest.mark.parametrize("size", range(1, 41))
def test_fit_is_the_smallest_covering_bucket(size: int) -> None:
    """Of a sparse ladder."""
    sizes = (1, 4, 5, 17, 40)
    sparse = ladder(1).of(batch=sizes)
    found = sparse.fit({"batch": size})
    assert found is not None
    assert found["batch"] == min(bucket_size for bucket_size in sizes if bucket_size >= size)


def test_exact_only_graph_serves_its_own_size() -> None:
    """A smaller shape goes to a larger graph that may be padded, or to none."""
    cache = GraphCache(100)
    exact = entry(4)
    exact.exact_only = True
    cache.insert(exact, 0.0)
    assert cache.acquire(signature(), {"batch": 3}, bucket(4)) is None
    assert cache.acquire(signature(), {"batch": 4}, bucket(4)) is exact
    padded = entry(8)
    cache.insert(padded, 0.0)
    assert cache.acquire(signature(), {"batch": 3}, bucket(4)) is padded


def test_pinned_entry_survives_pressure() -> None:
    """And what does not fit beside it is refused, with nothing changed."""
    cache = GraphCache(100)
    pinned = entry(1, bytes=60)
    cache.insert(pinned, 0.0)
    cache.pin(pinned.key, pinned=True)
    with pytest.raises(DoesNotFit):
        cache.insert(entry(2, bytes=50), 1.0)
    assert list(cache) == [pinned]


def test_an_arena_counts_once_and_until_it_is_empty() -> None:
    """Its high-water mark stays while any member does."""
    cache = GraphCache(1000)
    small, large = entry(1, bytes=5, arena="m", arena_bytes=100), entry(8, bytes=5, arena="m", arena_bytes=300)
    cache.insert(small, 0.0)
    cache.insert(large, 0.0)
    assert cache.used == 310
    cache.evict(large.key)
    assert cache.used == 305
    cache.evict(small.key)
    assert cache.used == 0


def test_repr_tells_entries_bytes_and_pins() -> None:
    """In one line."""
    cache = GraphCache(64 << 20)
    cache.insert(entry(1, bytes=3 << 20), 0.0)
    assert repr(cache) == "<GraphCache 1 graphs, 3/64 MiB, 0 pinned>"
