"""The ladder optimiser against brute force, in both regimes of bytes."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachepolicy.costs import Prices
from cachepolicy.demand import Demand
from cachepolicy.ladder import Pricing, candidates_of, frontier
from tests.cachepolicy.worlds import demand, flat


def random_world(seed: int, *, arena: bool, rising: bool) -> Demand:
    """Eight sizes with costs that need not be smooth; tops rise with size, as an arena's do."""
    random = Random(seed)
    sizes = range(8)
    eager = [random.uniform(1.0, 10.0) for _ in sizes]
    prices = Prices(
        sorted(eager) if rising else eager,
        sorted(random.uniform(0.5, 9.0) for _ in sizes),
        [random.uniform(0.0, 3.0) for _ in sizes],
        [random.randint(1, 3) if arena else random.randint(3, 12) for _ in sizes],
        sorted(random.randint(5, 20) for _ in sizes) if arena else [0 for _ in sizes],
    )
    return demand(prices, [random.choice([0.0, random.uniform(0.0, 4.0)]) for _ in sizes])


def net(world: Demand, horizon: float, positions: tuple[int, ...]) -> float:
    """By the rule itself: the smallest covering graph serves where it is faster than eager."""
    prices = world.prices
    saved = 0.0
    for at, rate in enumerate(world.rates):
        serving = next((position for position in positions if position >= at), None)
        if serving is not None:
            saved += rate * max(0.0, prices.eager[at] - prices.replay[serving])
    return horizon * saved - sum(prices.capture[at] for at in positions)


def subsets(count: int, largest: int | None = None) -> list[tuple[int, ...]]:
    """All sets of positions."""
    return [chosen for size in range((largest if largest is not None else count) + 1) for chosen in combinations(range(count), size)]


@given(seed=st.integers(0, 10_000), arena=st.booleans(), rising=st.booleans(), budget=st.integers(0, 45))
def test_frontier_is_the_optimum_for_every_budget(seed: int, arena: bool, rising: bool, budget: int) -> None:
    """No subset that fits saves more."""
    world = random_world(seed, arena=arena, rising=rising)
    best = frontier(world, 5.0, budget, world.prices.capture, range(8))[-1]
    fitting = [chosen for chosen in subsets(8) if world.prices.bytes(chosen) <= budget]
    assert best.bytes <= budget
    assert best.bytes == world.prices.bytes(best.positions)
    assert best.net_s == pytest.approx(net(world, 5.0, best.positions))
    assert best.net_s == pytest.approx(max(net(world, 5.0, chosen) for chosen in fitting))


@given(seed=st.integers(0, 10_000), graphs=st.integers(0, 4))
def test_frontier_is_the_optimum_for_a_number_of_graphs(seed: int, graphs: int) -> None:
    """No subset of at most so many graphs saves more."""
    world = random_world(seed, arena=False, rising=True)
    best = frontier(world, 5.0, 1000, world.prices.capture, range(8), graphs)[-1]
    assert len(best.positions) <= graphs
    assert best.net_s == pytest.approx(max(net(world, 5.0, chosen) for chosen in subsets(8, graphs)))


@given(seed=st.integers(0, 10_000), arena=st.booleans(), per_byte=st.floats(0.0, 2.0))
def test_pricing_is_the_optimum_for_a_price_per_byte(seed: int, arena: bool, per_byte: float) -> None:
    """No subset is worth more once its bytes are paid."""
    world = random_world(seed, arena=arena, rising=False)
    pricing = Pricing(world, 5.0, lambda at: world.prices.capture[at], range(8))

    def worth(chosen: tuple[int, ...]) -> float:
        return net(world, 5.0, chosen) - per_byte * world.prices.bytes(chosen)

    assert worth(tuple(pricing.best(per_byte))) == pytest.approx(max(worth(chosen) for chosen in subsets(8)))


@given(seed=st.integers(0, 10_000), arena=st.booleans(), budget=st.integers(1, 60))
def test_what_pricing_offers_for_a_budget_fits_it(seed: int, arena: bool, budget: int) -> None:
    """Each set, in bytes of the whole set."""
    world = random_world(seed, arena=arena, rising=True)
    pricing = Pricing(world, 5.0, lambda at: world.prices.capture[at], range(8))
    assert all(world.prices.bytes(chosen) <= budget for chosen in pricing.within(budget))


def test_largest_size_of_traffic_is_covered() -> None:
    """Where replay is faster throughout, the best set of any number of graphs reaches up to the largest size that came."""
    world = demand(flat(32), [1.0] * 20)
    for choice in frontier(world, 600.0, 60, world.prices.capture, range(20))[1:]:
        assert choice.positions[-1] == 19


def test_shared_arena_takes_more_graphs_of_one_reach() -> None:
    """Below the top, graphs cost next to nothing there; with pools of their own the same budget holds two."""
    rates = [1.0] * 16
    private = demand(flat(16, own=20, capture=0.0), rates)
    arena = demand(flat(16, own=1, top=2, capture=0.0), rates)
    assert len(frontier(private, 600.0, 40, private.prices.capture, range(16))[-1].positions) == 2
    assert len(frontier(arena, 600.0, 40, arena.prices.capture, range(16))[-1].positions) == 8


def test_candidates_hold_the_residents_and_the_largest_size_seen() -> None:
    """However few may be considered."""
    world = demand(flat(64), [1.0] * 40)
    found = candidates_of(world, (3, 50), 8)
    assert {3, 50, 39} <= set(found)
    assert len(found) <= 11
