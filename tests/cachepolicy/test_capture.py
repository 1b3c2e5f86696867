"""Admission: what pays is captured, what does not is left alone, and the budget holds before the capture."""

from __future__ import annotations

from random import Random

import pytest

from cachepolicy.cache import GraphCache, GraphEntry
from cachepolicy.capture import Action, Capture, Evict, Patience, PaybackAdmission, Rebuild, Refuse, Wait
from cachepolicy.costs import Prices
from cachepolicy.keys import GraphKey
from cachepolicy.reasons import RefusalReason
from tests.cachepolicy.worlds import bucket, flat, ladder, priced, signature


class Bench:
    """A policy, a cache that does as it says, and a clock."""

    def __init__(self, prices: Prices, *names: str, budget: int = 1000, patience: Patience | None = None) -> None:
        self.prices = prices
        self.names = names or ("model",)
        self.costs = priced(prices, *self.names)
        self.policy = PaybackAdmission(self.costs, patience or Patience())
        self.cache = GraphCache(budget)
        self.actions: list[Action] = []
        self.now = 0.0
        for name in self.names:
            self.policy.introduce(signature(name), ladder(len(prices.eager)), 0.0)

    def run(self, size: int, steps: int = 1, seconds: float = 1.0, name: str = "model") -> None:
        """Steps of one size over some seconds, decisions carried out where due."""
        for _ in range(steps):
            found = self.cache.acquire(signature(name), {"batch": size}, bucket(size))
            if found is not None:
                self.cache.release(found)
            if self.policy.count(signature(name), bucket(size), found.key.bucket if found else None, self.now):
                self.decide()
            self.now += seconds / steps

    def decide(self) -> list[Action]:
        """Ask, and do."""
        found = list(self.policy.decide(self.cache, self.now))
        for action in found:
            match action:
                case Evict(key):
                    assert self.cache.evict(key) is not None
                case Rebuild(of):
                    survivors = [entry.key for entry in self.cache.resident(of)]
                    for key in survivors:
                        self.cache.evict(key)
                    for key in survivors:
                        self.insert(key)
                case Capture(key):
                    self.insert(key)
        self.actions += found
        return found

    def captures(self) -> int:
        """How many so far."""
        return sum(isinstance(action, Capture) for action in self.actions)

    def insert(self, key: GraphKey) -> None:
        """Headroom was made before: nothing is evicted by the insert."""
        at = key.bucket.volume - 1
        top = self.prices.top[at]
        entry = GraphEntry(key, None, self.prices.own[at], key.signature.weights if top else "", top)
        assert self.cache.insert(entry, self.now) == []

    def sizes(self, name: str = "model") -> list[int]:
        """What is resident."""
        return [entry.key.bucket["batch"] for entry in self.cache.resident(signature(name))]


def test_traffic_that_repeats_is_captured_early() -> None:
    """Long before the lost saving has paid for the capture: what was just deployed is not about to end."""
    bench = Bench(flat(32))
    bench.run(8, steps=40, seconds=0.4)
    assert max(bench.sizes()) >= 8


def test_one_shot_shapes_are_never_captured() -> None:
    """However cheap the capture."""
    bench = Bench(flat(32, capture=1e-6))
    bench.policy.count(signature(), bucket(7), None, 0.0)
    assert bench.decide() == []


def test_padded_replay_that_is_slower_than_eager_is_refused() -> None:
    """The capture never comes, and says why."""
    bench = Bench(flat(32, eager=3e-3, replay=2.95e-3))
    bench.run(8, steps=2000, seconds=20.0)
    assert bench.actions == []
    assert bench.policy.judge(GraphKey(signature(), bucket(8)), bench.now) == Refuse(RefusalReason.UNPROFITABLE)


def test_graph_is_captured_only_where_it_pays() -> None:
    """Faster at small sizes, equal at large ones."""
    prices = Prices([6e-3] * 8 + [12e-3] * 24, [2e-3] * 8 + [12e-3] * 24, [0.3] * 32, [10] * 32, [0] * 32)
    bench = Bench(prices)
    for _ in range(60):
        bench.run(6, steps=100)
        bench.run(24, steps=100)
    assert bench.sizes()
    assert max(bench.sizes()) <= 8


def test_victims_go_before_the_capture() -> None:
    """The plan evicts first, so that the budget holds at every moment."""
    bench = Bench(flat(64, own=10), budget=10)
    bench.run(4, steps=500, seconds=5.0)
    bench.run(40, steps=20_000, seconds=200.0)
    assert bench.sizes() == [max(bench.sizes())]
    assert bench.sizes()[0] >= 40
    kinds = [type(action) for action in bench.actions]
    assert kinds.index(Evict) < len(kinds) - 1 - kinds[::-1].index(Capture)


def test_graphs_larger_than_the_budget_keep_no_smaller_one_away() -> None:
    """Little was seen, so larger sizes look better at first; there is room for none of them."""
    sizes = range(1, 129)
    prices = Prices([6e-3] * 128, [3e-3 + 2e-6 * size for size in sizes], [0.1] * 128, [10 * size for size in sizes], [0] * 128)
    bench = Bench(prices, budget=645)
    bench.run(64, steps=4000, seconds=24.0)
    assert bench.sizes() == [64]


def test_pinned_graph_is_no_victim() -> None:
    """Even where everything else is worth more."""
    bench = Bench(flat(64, own=10), budget=10)
    bench.run(4, steps=500, seconds=5.0)
    (kept,) = bench.cache
    bench.cache.pin(kept.key, pinned=True)
    bench.run(40, steps=20_000, seconds=200.0)
    assert list(bench.cache) == [kept]


def test_idle_model_gives_way_to_a_busy_one() -> None:
    """The saving per second decides between models."""
    bench = Bench(flat(8, own=10), "idle", "busy", budget=10)
    bench.run(2, steps=2000, seconds=20.0, name="idle")
    assert bench.sizes("idle")
    bench.run(2, steps=30_000, seconds=300.0, name="busy")
    assert bench.sizes("busy")
    assert not bench.sizes("idle")


def test_steady_traffic_does_not_thrash() -> None:
    """Two models that are worth the same do not take the budget from each other in turn."""
    bench = Bench(flat(8, own=10), "a", "b", budget=10)
    for _ in range(300):
        bench.run(2, steps=20, seconds=0.2, name="a")
        bench.run(2, steps=20, seconds=0.2, name="b")
    assert sum(isinstance(action, Capture) for action in bench.actions) <= 3


def turns(capture: float, steps: int) -> Bench:
    """Two equal models with room for one graph take turns of so many steps, for 20,000 steps in all."""
    bench = Bench(flat(8, own=10, capture=capture), "one", "other", budget=10)
    for _ in range(20_000 // (2 * steps)):
        for name in bench.names:
            bench.run(4, steps=steps, seconds=steps * 4e-3, name=name)
    return bench


def test_bytes_go_to_whose_turn_it_is() -> None:
    """Where a turn pays for two captures: its own, and the other's when that is on again."""
    followed = turns(capture=0.02, steps=100)
    assert followed.captures() > 150
    assert turns(capture=0.3, steps=100).captures() < 10


def test_models_that_are_busy_at_once_do_not_take_bytes_from_each_other() -> None:
    """However cheap captures are: each would be gone again before it has paid."""
    names = [str(number) for number in range(12)]
    bench = Bench(flat(8, own=10, capture=0.02), *names, budget=20)
    random = Random(2)
    for _ in range(40):
        busy = random.sample(names, 5)
        for _ in range(200):
            for name in busy:
                bench.run(4, seconds=1e-3, name=name)
    assert 0 < bench.captures() < 400


def test_arena_gives_its_top_back_by_a_rebuild() -> None:
    """Evicting the largest graph frees nothing until the arena is built anew."""
    bench = Bench(flat(64, own=1, top=2, capture=0.03), budget=60)
    bench.run(20, steps=3000, seconds=30.0)
    high = bench.cache.arena_bytes("model:1@1")
    for _ in range(400):
        bench.run(2, steps=100)
        bench.run(5, steps=100)
        bench.run(9, steps=100)
    assert bench.cache.used <= 60
    assert {2, 5, 9} <= set(bench.sizes()) or bench.cache.arena_bytes("model:1@1") < high


def test_refusals_age_and_grow() -> None:
    """A refused graph is left alone for a while, twice as long the second time."""
    bench = Bench(flat(8), patience=Patience(refusal_s=100.0))
    key = GraphKey(signature(), bucket(4))
    bench.policy.refuse(key, RefusalReason.MISMATCH, 0.0)
    assert bench.policy.judge(key, 99.0) == Refuse(RefusalReason.MISMATCH)
    assert not isinstance(bench.policy.judge(key, 101.0), Refuse)
    bench.policy.refuse(key, RefusalReason.MISMATCH, 101.0)
    assert bench.policy.judge(key, 290.0) == Refuse(RefusalReason.MISMATCH)
    assert not isinstance(bench.policy.judge(key, 302.0), Refuse)


def test_a_graph_made_by_order_is_not_refused_any_more() -> None:
    """Its next refusal is a first one again."""
    bench = Bench(flat(8), patience=Patience(refusal_s=100.0))
    key = GraphKey(signature(), bucket(4))
    for _ in range(3):
        bench.policy.refuse(key, RefusalReason.UNPROFITABLE, 0.0)
    bench.policy.pardon(key)
    assert not isinstance(bench.policy.judge(key, 1.0), Refuse)
    bench.policy.refuse(key, RefusalReason.UNPROFITABLE, 1.0)
    assert not isinstance(bench.policy.judge(key, 102.0), Refuse)


def test_refused_bucket_is_not_captured_but_a_larger_one_may_be() -> None:
    """Traffic is served by the next larger graph."""
    bench = Bench(flat(32))
    for size in range(1, 9):
        bench.policy.refuse(GraphKey(signature(), bucket(size)), RefusalReason.CAPTURE_ERROR, 0.0)
    bench.run(8, steps=500, seconds=5.0)
    assert bench.sizes()
    assert min(bench.sizes()) > 8


def test_profile_is_captured_before_traffic() -> None:
    """The best set that fits, at once."""
    bench = Bench(flat(32, own=10), budget=20)
    bench.policy.introduce(signature(), ladder(32), 0.0, {bucket(4): 100_000.0, bucket(16): 100_000.0})
    bench.decide()
    assert bench.sizes() == [4, 16]


def test_counting_says_when_a_decision_is_due() -> None:
    """In exactly the number of runs that it foretold."""
    bench = Bench(flat(8))
    bench.decide()
    foretold = bench.policy.steps_until_due(signature(), bucket(4), None)
    assert foretold is not None
    for _ in range(foretold - 1):
        assert not bench.policy.count(signature(), bucket(4), None, 0.0)
    assert bench.policy.count(signature(), bucket(4), None, 0.0)
    assert bench.policy.steps_until_due(signature(), bucket(4), bucket(4)) is None


def test_forgotten_signature_is_not_counted() -> None:
    """Its model is gone."""
    bench = Bench(flat(8))
    bench.policy.forget(signature())
    assert not bench.policy.count(signature(), bucket(4), None, 0.0, 10_000)
    assert bench.policy.judge(GraphKey(signature(), bucket(4)), 0.0) == Wait(0.0, 0.0)
    assert bench.decide() == []


def test_graph_that_became_slow_is_worth_nothing() -> None:
    """Re-measured costs change the verdict."""
    bench = Bench(flat(8))
    bench.run(4, steps=500, seconds=5.0)
    (held, *_) = bench.cache
    assert bench.policy.worth(held.key) > 0.0
    for at in range(8):
        for _ in range(100):
            bench.costs.observe_replay(signature(), bucket(at + 1), 9e-3)
    bench.policy.count(signature(), bucket(4), None, bench.now)
    bench.decide()
    assert bench.policy.worth(held.key) == pytest.approx(0.0)
