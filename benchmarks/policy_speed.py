"""How long the policy thinks: a decision with 500 graphs in the capturer's thread, a count and a lookup on the request path."""

from __future__ import annotations

from random import Random
from time import perf_counter

from cachepolicy.cache import GraphCache, GraphEntry
from cachepolicy.capture import Capture, Evict, PaybackAdmission
from cachepolicy.costs import CostTable, Prices
from cachepolicy.eviction import MarginalSaving
from cachepolicy.simulate import AXIS, known_costs, ladder_of, signature_of

GRAPHS = 500
SECONDS = 200
SIZES = 64
MIB = 1 << 20


def quantiles(name: str, seconds: list[float]) -> None:
    """One line."""
    seconds.sort()
    p50, p99 = (1e6 * seconds[int(share * (len(seconds) - 1))] for share in (0.5, 0.99))
    print(f"{name:12s} p50 {p50:8.1f} us  p99 {p99:8.1f} us  n {len(seconds)}")


def measure(models: int) -> None:
    """Models of unlike popularity, each with all sizes, share a budget of 500 graphs that they could use more of."""
    random = Random(1)
    sizes = range(1, SIZES + 1)
    prices = [Prices([6e-3] * SIZES, [3e-3 + 2e-5 * size for size in sizes], [0.01] * SIZES, [MIB] * SIZES, [0] * SIZES)] * models
    costs = CostTable()
    for signature, known in known_costs(prices):
        costs.load(signature, known)
    policy = PaybackAdmission(costs)
    cache = GraphCache(GRAPHS * MIB, MarginalSaving(policy.worth))
    signatures = [signature_of(model) for model in range(models)]
    ladder = ladder_of(SIZES)
    buckets = tuple(ladder.buckets())
    for signature in signatures:
        policy.introduce(signature, ladder, 0.0)
    decisions: list[float] = []
    counts: list[float] = []
    lookups: list[float] = []
    for step in range(500 * SECONDS):
        now = step / 500
        signature = signatures[min(models - 1, int(random.expovariate(3 / models)))]
        size = 1 + int(random.betavariate(2, 4) * (SIZES - 1))
        bucket, shape = buckets[size - 1], {AXIS: size}
        started = perf_counter()
        entry = cache.acquire(signature, shape, bucket)
        found = perf_counter()
        due = policy.count(signature, bucket, None if entry is None else entry.key.bucket, now)
        counts.append(perf_counter() - found)
        lookups.append(found - started)
        if entry is not None:
            cache.release(entry)
        if due:
            started = perf_counter()
            actions = policy.decide(cache, now)
            decisions.append(perf_counter() - started)
            for action in actions:
                if isinstance(action, Evict):
                    cache.evict(action.key)
                elif isinstance(action, Capture):
                    cache.insert(GraphEntry(action.key, None, MIB), now)
    print(f"{models} models, {len(cache)} graphs resident")
    quantiles("decision", decisions)
    quantiles("count", counts)
    quantiles("lookup", lookups)


if __name__ == "__main__":
    measure(10)
    measure(80)
