"""Forecasts: what is seen comes back, what has changed is believed, and a profile is trusted as far as traffic is like it."""

from __future__ import annotations

import pytest

from cachepolicy.buckets import Bucket, BucketLadder
from cachepolicy.costs import Prices
from cachepolicy.demand import Demand, Outlook, chained, likeness, neighbours
from tests.cachepolicy.worlds import bucket, demand, flat, ladder


def counted(sizes: dict[int, int], seconds: int, largest: int = 64) -> Demand:
    """The same steps per size each second."""
    found = Demand(tuple(ladder(largest).buckets()), flat(largest), Outlook(), 0.0)
    for second in range(seconds):
        see(found, sizes, float(second))
    return found


def see(found: Demand, sizes: dict[int, int], now: float) -> None:
    for size, steps in sizes.items():
        found.count(size - 1, None, steps, now)
    found.forecast(now + 1.0)


def test_steady_traffic_is_expected_to_go_on() -> None:
    """At its own rates."""
    found = counted({4: 30, 8: 10}, 600)
    assert found.rates[3] == pytest.approx(30.0, rel=0.1)
    assert found.rates[7] == pytest.approx(10.0, rel=0.1)


def test_little_traffic_is_spread_to_neighbouring_sizes() -> None:
    """A few steps at 16 say that 20 may come; an hour of them, that it does not."""
    young, old = counted({16: 1}, 2), counted({16: 100}, 3600)
    assert young.rates[19] > 0.01 * young.rates[15]
    assert len(old.rates) == 16


def test_lasting_change_is_believed_within_minutes() -> None:
    """Though an hour has shown the opposite."""
    found = counted({2: 100}, 3600)
    for second in range(3600, 3800):
        see(found, {40: 100}, float(second))
    assert found.rates[39] > 80.0
    assert found.rates[1] < 20.0


def test_passing_change_erases_little() -> None:
    """Ten seconds of other sizes after an hour."""
    found = counted({2: 100}, 3600)
    for second in range(3600, 3610):
        see(found, {40: 100}, float(second))
    assert found.rates[1] > 70.0


def test_profile_is_dropped_where_traffic_is_unlike_it() -> None:
    """And kept where it is alike."""
    promised = {bucket(4): 360_000.0}
    alike, unlike = counted({}, 0), counted({}, 0)
    for found, size in ((alike, 4), (unlike, 30)):
        found.expect(promised)
        for second in range(60):
            see(found, {size: 100}, float(second))
    assert alike.trust > 0.9
    assert unlike.trust < 0.01
    assert unlike.rates[3] < 1.0


def test_activity_tells_a_burst_from_silence() -> None:
    """Against the forecast."""
    found = counted({4: 10}, 600)
    assert found.activity(600.0) == pytest.approx(1.0, rel=0.3)
    assert found.activity(620.0) < 0.01
    found.count(3, None, 400, 620.0)
    assert found.activity(620.0) > 10.0


def test_loss_of_a_run_is_against_its_own_graph() -> None:
    """Eager loses all of the saving, a padded replay the padding, the own graph nothing."""
    found = counted({}, 0)
    assert found.loss(3, None) == pytest.approx(6e-3 - 3.08e-3)
    assert found.loss(3, 7) == pytest.approx(4 * 2e-5)
    assert found.loss(3, 3) == 0.0


def test_saving_counts_only_where_the_padded_replay_is_faster() -> None:
    """Size 1 eagerly takes less than the replay at 2."""
    prices = Prices([1.0, 10.0], [0.9, 2.0], [0.0, 0.0], [1, 1], [0, 0])
    world = demand(prices, [5.0, 1.0])
    assert world.saving([1]) == pytest.approx(8.0)
    assert world.saving([0, 1]) == pytest.approx(8.5)


def test_gain_is_marginal_to_the_next_larger_graph() -> None:
    """The sum of gains in any order is the saving of the set."""
    world = demand(flat(8), [1.0] * 8)
    assert world.gain(-1, 7, None) + world.gain(-1, 3, 7) + world.gain(3, 5, 7) == pytest.approx(world.saving([3, 5, 7]))


def test_graph_of_another_chain_serves_nothing() -> None:
    """With two axes, a bucket serves what equals it in all but the first."""
    two_axes = BucketLadder.of(batch=(1, 2), seq=(32, 64))
    buckets = chained(two_axes)
    assert buckets == (Bucket.of(batch=1, seq=32), Bucket.of(batch=2, seq=32), Bucket.of(batch=1, seq=64), Bucket.of(batch=2, seq=64))
    world = Demand(buckets, Prices([5.0] * 4, [1.0] * 4, [0.0] * 4, [1] * 4, [0] * 4), Outlook(), 0.0)
    world.assume([1.0, 1.0, 1.0, 1.0])
    assert world.saving([3]) == pytest.approx(8.0)
    assert world.gain(1, 3, None) == pytest.approx(8.0)
    assert world.gain(-1, 1, 3) == pytest.approx(8.0)
    assert world.saving([1, 3]) == pytest.approx(16.0)


@pytest.mark.parametrize(("at", "found"), [(0, (-1, 2)), (2, (-1, 5)), (3, (2, 5)), (5, (2, None)), (9, (5, None))])
def test_neighbours_skip_the_position_itself(at: int, found: tuple[int, int | None]) -> None:
    """Next below and next above."""
    assert neighbours([2, 5], at) == found


def test_likeness_is_of_shapes() -> None:
    """Rates do not matter; sizes that are not shared do."""
    assert likeness([1.0, 3.0], [10.0, 30.0], 2.0) == pytest.approx(1.0)
    assert likeness([1.0, 0.0], [0.0, 1.0], 2.0) < 1e-6
    assert likeness([1.0, 1.0], [1.0, 0.0], 2.0) == pytest.approx(0.25)
    assert likeness([], [], 2.0) == 1.0
