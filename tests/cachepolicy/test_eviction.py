"""Orders of eviction."""

from __future__ import annotations

from cachepolicy.eviction import GreedyDualSize, LeastFrequentlyUsed, LeastRecentlyUsed, MarginalSaving
from tests.cachepolicy.worlds import entry


def test_least_recently_used_goes_first() -> None:
    """Of equals the larger."""
    old, new, large = entry(1), entry(2), entry(3, bytes=99)
    old.last_used, new.last_used, large.last_used = 1.0, 2.0, 1.0
    assert LeastRecentlyUsed().order([new, old, large], 3.0) == [large, old, new]


def test_least_frequently_used_goes_first() -> None:
    """By replays since the capture."""
    rare, often = entry(1), entry(2)
    rare.hits, often.hits = 1, 9
    assert LeastFrequentlyUsed().order([often, rare], 0.0) == [rare, often]


def test_greedy_dual_size_prefers_small_graphs() -> None:
    """Of equals in replays, the larger goes first."""
    small, large = entry(1, bytes=10), entry(2, bytes=100)
    small.hits = large.hits = 9
    assert list(GreedyDualSize().order([small, large], 0.0)) == [large, small]


def test_greedy_dual_size_lets_old_fame_age() -> None:
    """What is replayed after many victims outlives what was replayed more often before them."""
    policy = GreedyDualSize()
    famous, newcomer = entry(1), entry(2)
    famous.hits = 5
    policy.order([famous], 0.0)
    for size in range(3, 6):
        victim = entry(size)
        victim.hits = 4
        policy.order([famous, victim], 0.0)
    newcomer.hits = 3
    assert list(policy.order([famous, newcomer], 0.0)) == [famous, newcomer]


def test_marginal_saving_is_per_byte() -> None:
    """Half the saving in a tenth of the bytes is worth more."""
    dear, cheap = entry(1, bytes=100), entry(2, bytes=10)
    worth = {dear.key: 2.0, cheap.key: 1.0}
    assert MarginalSaving(worth.__getitem__).order([cheap, dear], 0.0) == [dear, cheap]
