"""The policy beside what others do, on the same traffic, costs and budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from cachepolicy.baselines import CaptureOnMiss, FixedSet
from cachepolicy.buckets import default_sizes, vllm_sizes
from cachepolicy.cache import GraphCache
from cachepolicy.capture import CaptureAdmission, PaybackAdmission
from cachepolicy.closed_loop import ClosedLoop, Request
from cachepolicy.costs import CostTable, Prices
from cachepolicy.demand import Demand, Outlook
from cachepolicy.eviction import EvictionPolicy, GreedyDualSize, LeastFrequentlyUsed, LeastRecentlyUsed, MarginalSaving
from cachepolicy.keys import GraphKey
from cachepolicy.ladder import frontier
from cachepolicy.simulate import Outcome, Run, Simulation, Source, known_costs, ladder_of, signature_of

Profile = Mapping[int, Mapping[int, float]]  # expected steps per model and size


class Policy(StrEnum):
    """A way to run the cache."""

    PAYBACK = "payback"  # what ships
    EAGER = "eager"  # no graphs
    LRU = "lru"  # capture on every miss
    LFU = "lfu"
    GDSF = "gdsf"
    POWERS_OF_TWO = "powers-of-two"  # a fixed list, cut to the budget
    VLLM = "vllm"


_EVICTIONS: dict[Policy, Callable[[], EvictionPolicy]] = {
    Policy.LRU: LeastRecentlyUsed,
    Policy.LFU: LeastFrequentlyUsed,
    Policy.GDSF: GreedyDualSize,
}
_LISTS: dict[Policy, Callable[[int], Sequence[int]]] = {Policy.POWERS_OF_TWO: default_sizes, Policy.VLLM: vllm_sizes}


def run(policy: Policy, prices: Sequence[Prices], budget: int, source: Source, profile: Profile | None = None) -> Outcome:
    """Drive one policy, from its shipped settings. `budget` in bytes; `prices` per model, position i is size i + 1."""
    if policy is Policy.PAYBACK:
        costs = CostTable()
        for signature, known in known_costs(prices):
            costs.load(signature, known)
        admission = PaybackAdmission(costs)
        return _drive(prices, GraphCache(budget, MarginalSaving(admission.worth)), admission, source, profile)
    if policy in _EVICTIONS:
        return _drive(prices, GraphCache(budget, _EVICTIONS[policy]()), CaptureOnMiss(), source)
    return run_fixed(prices, budget, source, cut(prices, budget, _LISTS[policy]) if policy in _LISTS else [])


def run_fixed(prices: Sequence[Prices], budget: int, source: Source, graphs: Sequence[tuple[int, int]]) -> Outcome:
    """Drive with a fixed set of (model, size), captured at the start."""
    keys = [GraphKey(signature_of(model), tuple(ladder_of(size).buckets())[-1]) for model, size in graphs]
    return _drive(prices, GraphCache(budget), FixedSet(keys), source)


def best_fixed(prices: Prices, budget: int, histogram: Mapping[int, float]) -> list[int]:
    """The sizes that would have been best for one model's steps per size: exact, in hindsight."""
    buckets = tuple(ladder_of(len(prices.eager)).buckets())
    demand = Demand(buckets, prices, Outlook(), 0.0)
    demand.assume([histogram.get(size, 0.0) for size in range(1, len(buckets) + 1)])
    chosen = frontier(demand, 1.0, budget, prices.capture, [size - 1 for size in sorted(histogram)])[-1]
    return [at + 1 for at in chosen.positions]


def best_closed(prices: Prices, budget: int, requests: Sequence[Request]) -> tuple[list[int], float]:
    """The best fixed set of a closed loop that is found, and its mean seconds per token.

    Sizes come of the set, and the set of sizes: three times in turn, and then a row more or less for each graph as long as that helps.
    """
    largest = len(prices.eager)
    found: dict[tuple[int, ...], ClosedLoop] = {}

    def served(sizes: Sequence[int]) -> ClosedLoop:
        loop = found.get(tuple(sizes))
        if loop is None:
            loop = found[tuple(sizes)] = ClosedLoop(requests, largest)
            run_fixed([prices], budget, loop, [(0, size) for size in sizes])
        return loop

    best: list[int] = []
    sizes: list[int] = []
    for _ in range(4):
        sizes = best_fixed(prices, budget, served(sizes).steps)
        best = min(best, sizes, key=lambda each: served(each).mean_token_s)
    before: list[int] = []
    while before != best:
        before = best
        for at in reversed(range(len(before))):
            for by in (-1, 1):
                other = sorted({size + by * (index == at) for index, size in enumerate(best)})
                fits = other[0] > 0 and other[-1] <= largest and prices.bytes(size - 1 for size in other) <= budget
                if fits and len(other) == len(best) and served(other).mean_token_s < served(best).mean_token_s:
                    best = other
    return best, served(best).mean_token_s


def cut(prices: Sequence[Prices], budget: int, sizes_up_to: Callable[[int], Sequence[int]]) -> list[tuple[int, int]]:
    """A list of sizes for each model in turn, smallest first, as far as the budget goes."""
    held: list[list[int]] = [[] for _ in prices]
    chosen: list[tuple[int, int]] = []
    for size in sizes_up_to(max(len(of_model.eager) for of_model in prices)):
        for model, of_model in enumerate(prices):
            if size > len(of_model.eager):
                continue
            held[model].append(size - 1)
            if sum(other.bytes(positions) for other, positions in zip(prices, held, strict=True)) > budget:
                return chosen
            chosen.append((model, size))
    return chosen


def histogram_of(runs: Sequence[Run]) -> dict[int, dict[int, float]]:
    """Steps per model and size."""
    found: dict[int, dict[int, float]] = {}
    for run_ in runs:
        sizes = found.setdefault(run_.model, {})
        sizes[run_.size] = sizes.get(run_.size, 0.0) + run_.steps
    return found


def _drive(
    prices: Sequence[Prices], cache: GraphCache, admission: CaptureAdmission, source: Source, profile: Profile | None = None
) -> Outcome:
    simulation = Simulation(prices, cache, admission)
    simulation.introduce(profile)
    outcome = simulation.drive(source)
    cache.check_integrity()
    return outcome
