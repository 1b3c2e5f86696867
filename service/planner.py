"""`graphcache plan`: which buckets would be best for the traffic that was seen, within a budget, and what the usual lists would reach.

Every set is judged alike, on the exact sizes that came: each size is replayed by the smallest bucket that covers it, where that is
faster than eager. With one axis the set is the exact optimum over the sizes that came (cachepolicy.ladder); with several axes a search
finds one (cachepolicy.grids). A bucket that would not be admitted is in no set: its replay, as known or predicted, does not pay at its own
size, or the bucket that serves it now was refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cachepolicy.buckets import Bucket, default_sizes, vllm_sizes
from cachepolicy.costs import CostTable, Prices
from cachepolicy.demand import Demand, Outlook
from cachepolicy.grids import Grid
from cachepolicy.keys import Signature
from cachepolicy.ladder import candidates_of, frontier
from service.measuring import Figures, Sample
from service.messages import Plan, PlanAlternative, PlannedGraph
from service.models.spec import ModelSpec

_CANDIDATES = 32
_MIB = 1 << 20

SizesOf = Callable[[str, int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class _Size:
    """An exact size of traffic: runs per second and seconds of an eager run."""

    bucket: Bucket
    rate: float
    eager_s: float


class Planner:
    """Plans for one signature. `runs` are counts per exact size over `seconds`; `refused` are buckets that may not exist for now."""

    def __init__(
        self,
        spec: ModelSpec,
        signature: Signature,
        costs: CostTable,
        runs: Mapping[tuple[tuple[str, int], ...], int],
        seconds: float,
        min_gain: float,
        refused: Collection[Bucket] = (),
    ) -> None:
        self._spec = spec
        self._signature = signature
        self._costs = costs
        self._runs = runs
        self._seconds = seconds
        self._min_gain = min_gain
        self._refused = refused
        buckets = sorted((Bucket(sizes) for sizes in runs), key=lambda bucket: (bucket.volume, bucket.sizes))
        self._prices: dict[Bucket, Prices] = {}
        self._traffic = [_Size(bucket, runs[bucket.sizes] / seconds, self._price(bucket).eager[0]) for bucket in buckets]

    def plan(self, budget: int, graphs: int, session_bytes: int) -> Plan:
        """The best set within `budget` bytes and so many graphs; `session_bytes` of a KV cache tell what the set displaces."""
        chosen = self._order(self._best(budget, graphs))
        planned = []
        for index, bucket in enumerate(chosen):
            before, after = chosen[:index], chosen[: index + 1]
            planned.append(
                PlannedGraph(
                    bucket,
                    runs_per_s=self._served(chosen).get(bucket, (0.0, 0.0, 0.0))[0],
                    adds_s_per_s=self._saving(after) - self._saving(before),
                    bytes=self._bytes(after) - self._bytes(before),
                    capture_s=self._price(bucket).capture[0],
                )
            )
        best = self._judge("best", chosen)
        return Plan(
            self._spec.name,
            self._spec.version,
            self._signature.variant,
            sum(self._runs.values()),
            self._seconds,
            planned,
            {axis.name: sorted({bucket[axis.name] for bucket in chosen}) for axis in self._spec.axes},
            [best, *self._usual(budget)],
            self._marginal(budget, graphs, best),
            None if session_bytes <= 0 else best.bytes / session_bytes,
            [(size.bucket, self._runs[size.bucket.sizes]) for size in self._traffic],
        )

    # -- sets of buckets

    def _best(self, budget: int, graphs: int) -> list[Bucket]:
        if len(self._spec.axes) != 1:
            return self._search(budget, graphs)
        buckets = [size.bucket for size in self._traffic]
        demand = Demand(buckets, self._costs.prices(self._signature, buckets), Outlook(), 0.0)
        demand.assume([size.rate for size in self._traffic])
        candidates = [at for at in candidates_of(demand, (), _CANDIDATES) if self._admitted(buckets[at])]
        found = frontier(demand, 1.0, budget, [0.0] * len(buckets), candidates, graphs)[-1]
        return [buckets[at] for at in found.positions]

    def _search(self, budget: int, graphs: int) -> list[Bucket]:
        weighed = sorted(self._traffic, key=lambda size: -size.rate * size.eager_s)[:_CANDIDATES]
        fits = {fit for size in weighed if (fit := self._spec.ladder.fit(size.bucket.as_dict())) is not None}
        admitted = filter(self._admitted, {size.bucket for size in weighed} | fits)
        candidates = sorted(admitted, key=lambda bucket: (bucket.volume, bucket.sizes))
        prices = [self._price(bucket) for bucket in candidates]
        serving = [
            [
                (at, size.rate * max(0.0, size.eager_s - prices[at].replay[0]))
                for at, bucket in enumerate(candidates)
                if bucket.covers(size.bucket.as_dict())
            ]
            for size in self._traffic
        ]
        found = Grid(serving, [price.own[0] for price in prices], [price.top[0] for price in prices]).best(budget, graphs)
        return [candidates[at] for at in sorted(found)]

    def _order(self, chosen: Iterable[Bucket]) -> list[Bucket]:
        """For prewarming: what adds most comes first."""
        left, ordered = list(chosen), list[Bucket]()
        while left:
            next_one = max(left, key=lambda bucket: (self._saving([*ordered, bucket]), bucket.sizes))
            ordered.append(next_one)
            left.remove(next_one)
        return ordered

    def _usual(self, budget: int) -> list[PlanAlternative]:
        """Lists that others use, cut to the budget from the top."""
        lists = {
            "configured": list(self._spec.ladder.buckets()),
            "powers of two": self._grid(lambda _name, largest: default_sizes(largest)),
            "vLLM's default": self._grid(
                lambda name, largest: vllm_sizes(largest) if name == self._spec.batch_axis else default_sizes(largest)
            ),
        }
        return [self._judge(name, self._cut(list(filter(self._admitted, buckets)), budget)) for name, buckets in lists.items()]

    def _grid(self, sizes_of: SizesOf) -> list[Bucket]:
        grid: list[tuple[tuple[str, int], ...]] = [()]
        for axis in self._spec.axes:
            grid = [(*sizes, (axis.name, size)) for sizes in grid for size in sizes_of(axis.name, axis.max)]
        return sorted((Bucket(sizes) for sizes in grid), key=lambda bucket: bucket.volume)

    def _cut(self, buckets: list[Bucket], budget: int) -> list[Bucket]:
        kept = list(buckets)
        while kept and self._bytes(kept) > budget:
            kept.pop()
        return kept

    def _admitted(self, bucket: Bucket) -> bool:
        """Whether its graph would serve, as far as that is known."""
        fit = self._spec.ladder.fit(bucket.as_dict())
        price = self._price(bucket)
        pays = Figures([Sample(bucket, 1.0, price.eager[0], price.replay[0])], 0.0).pays(self._min_gain)
        return pays and fit not in self._refused

    # -- what a set takes and gives

    def _judge(self, name: str, chosen: Sequence[Bucket]) -> PlanAlternative:
        served = self._served(chosen).values()
        real, padded = sum(s[1] for s in served), sum(s[2] for s in served)
        return PlanAlternative(name, len(chosen), self._saving(chosen), padded / real - 1.0 if real else 0.0, self._bytes(chosen))

    def _served(self, chosen: Sequence[Bucket]) -> dict[Bucket, tuple[float, float, float]]:
        """By bucket: runs per second, real and padded elements per second."""
        found: dict[Bucket, tuple[float, float, float]] = {}
        for size in self._traffic:
            bucket = self._server(size, chosen)
            if bucket is not None:
                runs, real, padded = found.get(bucket, (0.0, 0.0, 0.0))
                found[bucket] = (runs + size.rate, real + size.rate * size.bucket.volume, padded + size.rate * bucket.volume)
        return found

    def _saving(self, chosen: Sequence[Bucket]) -> float:
        """Seconds saved per second."""
        saving = 0.0
        for size in self._traffic:
            bucket = self._server(size, chosen)
            if bucket is not None:
                saving += size.rate * (size.eager_s - self._price(bucket).replay[0])
        return saving

    def _server(self, size: _Size, chosen: Sequence[Bucket]) -> Bucket | None:
        """The smallest bucket that covers a size, unless eager is faster."""
        shape = size.bucket.as_dict()
        covering = [bucket for bucket in chosen if bucket.covers(shape)]
        if not covering:
            return None
        smallest = min(covering, key=lambda bucket: bucket.volume)
        return smallest if self._price(smallest).replay[0] < size.eager_s else None

    def _bytes(self, chosen: Sequence[Bucket]) -> int:
        prices = [self._price(bucket) for bucket in chosen]
        return sum(price.own[0] for price in prices) + max((price.top[0] for price in prices), default=0)

    def _marginal(self, budget: int, graphs: int, best: PlanAlternative) -> float:
        """Seconds per second that a tenth more of budget would add, per MiB."""
        more = self._saving(self._best(budget + budget // 10, graphs)) - best.saved_s_per_s
        return max(0.0, more) / max(1, budget // 10) * _MIB

    def _price(self, bucket: Bucket) -> Prices:
        found = self._prices.get(bucket)
        if found is None:
            found = self._prices[bucket] = self._costs.prices(self._signature, [bucket])
        return found
