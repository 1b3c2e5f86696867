"""Small worlds for policy tests: prices along one axis, signatures, entries."""

from __future__ import annotations

from cachepolicy.buckets import Bucket, BucketLadder
from cachepolicy.cache import GraphEntry
from cachepolicy.costs import CostTable, Prices
from cachepolicy.demand import Demand, Outlook
from cachepolicy.keys import GraphKey, Signature


def signature(name: str = "model") -> Signature:
    """One of a few models on one device."""
    return Signature(environment="device", program=name, weights=f"{name}:1@1")


def bucket(size: int) -> Bucket:
    """One axis."""
    return Bucket.of(batch=size)


def ladder(largest: int) -> BucketLadder:
    """All sizes."""
    return BucketLadder.of(batch=tuple(range(1, largest + 1)))


def entry(size: int, *, name: str = "model", bytes: int = 10, arena: str = "", arena_bytes: int = 0) -> GraphEntry:
    """A graph of nothing."""
    return GraphEntry(GraphKey(signature(name), bucket(size)), None, bytes, arena, arena_bytes)


def flat(
    largest: int, *, eager: float = 6e-3, replay: float = 3e-3, per_row: float = 2e-5, capture: float = 0.3, own: int = 10, top: int = 0
) -> Prices:
    """Eager flat, replay rising a little with each row; `top` bytes per row where there is an arena."""
    sizes = range(1, largest + 1)
    return Prices(
        [eager for _ in sizes],
        [replay + per_row * size for size in sizes],
        [capture for _ in sizes],
        [own for _ in sizes],
        [top * size for size in sizes],
    )


def priced(prices: Prices, *names: str) -> CostTable:
    """A table that knows these prices for some models."""
    table = CostTable()
    for name in names or ("model",):
        columns = zip(prices.eager, prices.replay, prices.capture, prices.own, prices.top, strict=True)
        table.load(signature(name), {bucket(at + 1): values for at, values in enumerate(columns)})
    return table


def demand(prices: Prices, rates: list[float]) -> Demand:
    """A demand whose rates are known."""
    found = Demand(tuple(ladder(len(prices.eager)).buckets()), prices, Outlook(), 0.0)
    found.assume(rates)
    return found
