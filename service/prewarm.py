"""Captures before traffic: what the configuration lists, then what the profile promises. Readiness waits for these, up to a bound.

After that a few buckets of models that nobody knows the traffic of; nothing tells that they are worth waiting for. A model that is loaded
or reloaded later gets the same, in the background.

The plan is the policy's own (cachepolicy/capture.py): it is told how often each bucket will be used and what graphs cost, and names what it
would capture. Where costs are not known for this very kind of device and program, one or two promised buckets are captured and
measured first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import prod
from time import monotonic, time
from types import MappingProxyType

from cachepolicy.buckets import Bucket, BucketLadder
from cachepolicy.capture import Capture
from cachepolicy.costs import CostTable
from cachepolicy.keys import GraphKey, Signature
from service.admin import Admin
from service.capturer import Capturer
from service.config import PrewarmConfig, PrewarmEntry
from service.errors import GraphcacheError
from service.measuring import Figures, Sample
from service.memory import predicted_bytes
from service.messages import GraphMode
from service.models.spec import Variant
from service.profiling import Profiling, costs_by_bucket
from service.registry import Registry, ServedModel
from service.stores.base import CostRecord
from service.telemetry.metrics import Metrics
from service.telemetry.tracing import Operation, Tracer
from service.upkeep import Promise

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Progress:
    """How far a prewarm has come. `over`: readiness waits for it no more."""

    planned: int = 0
    captured: int = 0
    refused: int = 0
    over: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Expected:
    """A signature that is up, and what others tell of it."""

    served: ServedModel
    variant: Variant
    runs: Mapping[Bucket, float]
    costs: Sequence[CostRecord]  # of our kind
    foreign: Sequence[CostRecord]

    @property
    def signature(self) -> Signature:
        return self.served.signature(self.variant)

    def known(self, bucket: Bucket, min_gain: float) -> bool:
        """Whether a worker of our kind has measured that this bucket's graph pays."""
        sizes = sorted(bucket.sizes)
        return any(
            list(record.bucket) == sizes and Figures([Sample(bucket, 1.0, record.eager_s, record.replay_s)], 0.0).pays(min_gain)
            for record in self.costs
        )


@dataclass(slots=True, eq=False)
class Prewarm:
    """One run, for every model at start, or for one that came up later. `watch` is called whenever there is progress."""

    config: PrewarmConfig
    admin: Admin
    capturer: Capturer
    registry: Registry
    costs: CostTable
    profiling: Profiling
    metrics: Metrics
    tracer: Tracer | None
    min_gain: float
    plans: bool  # False: only what is listed
    watch: Callable[[Progress], None] = lambda _: None
    newcomer: ServedModel | None = None
    progress: Progress = field(default_factory=Progress)
    _tried: set[GraphKey] = field(default_factory=set)
    _started: float = 0.0
    _stopped: bool = False  # no more captures are begun

    async def run(self) -> None:
        """Capture until the plan is done or its time is up; what is listed goes on after that, in the background."""
        started = self._started = monotonic()
        progress, captures = self.progress, asyncio.create_task(self._capture_planned())
        try:
            await asyncio.wait_for(asyncio.shield(captures), self.config.at_most)
        except TimeoutError:
            log.warning("prewarm: its %s s have passed", self.config.at_most)
            self._stopped = True
        progress.over = True
        self._report()
        log.info("prewarm: %d graphs in %.1f s, %d refused", progress.captured, monotonic() - started, progress.refused)
        if self.tracer is not None:
            counts = {"graphcache.captured": progress.captured, "graphcache.refused": progress.refused}
            decision = {"graphcache.planned": progress.planned, "graphcache.budget_bytes": self.capturer.cache.budget}
            self.tracer.operation(Operation("graphcache.prewarm", started, monotonic(), counts, decision))

    async def usual(self) -> None:
        """To be called after `run`: a few buckets of what has no profile, as long as there is time and room left."""
        if self.plans and not self._stopped:
            captures = asyncio.create_task(self._capture(self._usual([one for one in self._expected() if not one.runs])))
            await asyncio.wait({captures}, timeout=self._started + self.config.at_most - monotonic())
            self._stopped = True

    async def _capture_planned(self) -> None:
        entries, progress = self._listed_entries(), self.progress
        progress.planned = len(entries)
        self._report()
        await asyncio.gather(*(self._listed(entry) for entry in entries))
        promised = [one for one in self._expected() if one.runs] if self.plans else []
        await self._capture(_first_looks(promised))
        if promised:
            promises = {one.signature: Promise(one.runs, costs_by_bucket(one.costs)) for one in promised}
            planned = await asyncio.wrap_future(self.capturer.foresee(promises))
            ordered = in_order([capture for capture in planned if capture.key.signature in promises])
            progress.planned = min(self.config.graphs, progress.captured + progress.refused + len(ordered))
            await self._capture(ordered, {one.signature: one for one in promised})

    async def one(self, served: ServedModel) -> None:
        """All of it for a model that was loaded or reloaded while the worker runs, with what others know of it by now. Nobody waits."""
        await self.profiling.read_again()
        alone = replace(self, newcomer=served, watch=lambda _: None, progress=Progress(), _tried=set(), _stopped=False)
        await alone.run()
        await alone.usual()

    # -- what is captured

    def _listed_entries(self) -> list[PrewarmEntry]:
        """The largest first."""
        spec = None if self.newcomer is None else self.newcomer.spec
        wanted = [e for e in self.config.list if spec is None or (e.model == spec.name and e.version in ("", spec.version))]
        return sorted(wanted, key=lambda entry: -prod(entry.shape.values()))[: self.config.graphs]

    def _expected(self) -> Iterator[_Expected]:
        """Every signature whose graphs the policy may choose."""
        for served in self.registry.all() if self.newcomer is None else [self.newcomer]:
            for variant in served.spec.all_variants():
                if served.mode(variant, time()).mode is GraphMode.AUTO:
                    signature = served.signature(variant)
                    costs, foreign = self.profiling.records(signature)
                    yield _Expected(served, variant, self.profiling.promised(signature, served.ladder), costs, foreign)

    def _usual(self, unknown: Sequence[_Expected]) -> Iterator[GraphKey]:
        """Without a profile: the largest bucket of each model, the smallest, and some between, as long as there is room."""
        ladders = [[one.served.key(one.variant, bucket) for bucket in usual_buckets(one.served.ladder)] for one in unknown]
        for rank in zip_longest(*ladders):
            for key in rank:
                if key is not None and self._fits(key):
                    yield key

    def _fits(self, key: GraphKey) -> bool:
        """Whether there is room for it beside what is resident, as far as that can be known."""
        cache = self.capturer.cache
        need = predicted_bytes(self.costs, cache, key)
        return cache.used < cache.budget if need is None else cache.used + need <= cache.budget

    # -- capturing

    async def _listed(self, entry: PrewarmEntry) -> None:
        try:
            await self.admin.warm(entry.model, entry.version, dict(entry.shape), dict(entry.variant), force=False)
        except GraphcacheError as error:
            log.warning("prewarm of %s %s: %s", entry.model, entry.shape, error)
            self.progress.refused += 1
        else:
            self.progress.captured += 1
        self._report()

    async def _capture(self, keys: Iterable[GraphKey], expected: Mapping[Signature, _Expected] = MappingProxyType({})) -> None:
        """One after the other, as many as are allowed."""
        wanted, progress = iter(keys), self.progress
        while not self._stopped and progress.captured + progress.refused < self.config.graphs and (key := next(wanted, None)) is not None:
            if key in self._tried or self.capturer.cache.get(key) is not None:
                continue
            self._tried.add(key)
            progress.planned = max(progress.planned, progress.captured + progress.refused + 1)
            self._report()
            try:
                known = key.signature in expected and expected[key.signature].known(key.bucket, self.min_gain)
                await asyncio.wrap_future(self.capturer.warm(key, force=False, known=known))
            except GraphcacheError as error:
                log.info("prewarm of %s: %s", key, error)
                progress.refused += 1
            else:
                progress.captured += 1
            self._report()

    def _report(self) -> None:
        progress = self.progress
        progress.seconds = monotonic() - self._started
        if self.newcomer is not None:  # the metrics are those of the start
            return
        self.metrics.prewarm(progress.planned, progress.captured, progress.refused, progress.seconds)
        self.watch(progress)


def in_order(planned: Sequence[Capture]) -> list[GraphKey]:
    """By what they gain; of each signature the largest first, since an arena gains from that."""
    largest: dict[Signature, GraphKey] = {}
    for capture in planned:
        key, best = capture.key, largest.get(capture.key.signature)
        if best is None or key.bucket.volume > best.bucket.volume:
            largest[key.signature] = key
    ordered: dict[GraphKey, None] = {}
    for capture in sorted(planned, key=lambda capture: -capture.gain_s):
        ordered[largest[capture.key.signature]] = None
        ordered[capture.key] = None
    return list(ordered)


def usual_buckets(ladder: BucketLadder) -> list[Bucket]:
    """The largest bucket, the smallest, and between them those whose sizes are near powers of two, all axes falling together."""
    steps: list[dict[str, int]] = []
    down = {name: sizes[-1] for name, sizes in ladder.axes}
    smallest = {name: sizes[0] for name, sizes in ladder.axes}
    while True:
        fit = ladder.fit(down)
        assert fit is not None
        steps.append(fit.as_dict())
        if fit.as_dict() == smallest:
            break
        down = {name: max(smallest[name], _power_below(size)) for name, size in down.items()}
    steps = [steps[0], steps[-1], *steps[1:-1]]
    return list(dict.fromkeys(bucket for sizes in steps if (bucket := ladder.fit(sizes)) is not None))


def _power_below(size: int) -> int:
    """The largest power of two below a size; 1 has none and stays."""
    return 1 << max(0, (size - 1).bit_length() - 1)


def _first_looks(promised: Iterable[_Expected]) -> Iterator[GraphKey]:
    """What is captured and measured of a signature without costs, so that a plan can be made: where most work is, and the largest.

    What others measured on other devices or software is believed no further than in choosing these.
    """
    for one in promised:
        if not one.costs:
            gains = {record.bucket: record.eager_s - record.replay_s for record in one.foreign}
            busiest = max(one.runs, key=lambda bucket: (one.runs[bucket] * gains.get(tuple(sorted(bucket.sizes)), 0.0), one.runs[bucket]))
            largest = max(one.runs, key=lambda bucket: bucket.volume)
            yield from (one.served.key(one.variant, bucket) for bucket in dict.fromkeys((largest, busiest)))
