"""What this worker leaves for others, and what others left for it: traffic and costs, by way of the profile store.

Nothing here is on a request's path, and nothing waits for the store longer than a moment: without it the worker only starts
less prepared. What can't be written is kept, for some hours, and written once the store is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import random
from time import monotonic, time

from cachepolicy.buckets import Bucket, BucketLadder
from cachepolicy.cache import GraphCache
from cachepolicy.costs import CostTable
from cachepolicy.keys import Signature
from cachepolicy.profile import TrafficProfile, Workload, shape_of
from service.recorder import Graph
from service.stores.base import HALF_LIFE_S, WINDOW_S, CostRecord, ProfileStore, StoreError, Window, program_of
from service.telemetry.metrics import Metrics
from service.traffic import Traffic

log = logging.getLogger(__name__)

FLUSH_S = 5.0  # between two writes
PATIENCE_S = 0.4  # as long as a start waits for the store, all attempts together
_FAREWELL_S = 1.0  # for the last write
_UNSAVED = 12  # windows that are kept while the store is away
_CHANGED = 0.2  # a cost that has changed by this share is written again


@dataclass(slots=True)
class Breaker:
    """Leaves a store alone for a while after it failed: longer each time, and never all workers at once."""

    jitter: Callable[[], float] = random  # from 0 to 1
    first_s: float = 1.0
    longest_s: float = 30.0
    _failures: int = 0
    _not_before: float = 0.0

    @property
    def broken(self) -> bool:
        """Whether the last attempt failed."""
        return self._failures > 0

    def allows(self, now: float) -> bool:
        """Whether it is time for an attempt."""
        return now >= self._not_before

    def failed(self, now: float) -> None:
        """An attempt failed."""
        delay_s = min(self.longest_s, self.first_s * 2.0 ** min(self._failures, 16))
        self._failures += 1
        self._not_before = now + delay_s * (0.5 + 0.5 * self.jitter())

    def succeeded(self) -> None:
        """An attempt went well."""
        self._failures, self._not_before = 0, 0.0


@dataclass(slots=True, eq=False)
class Counted:
    """Windows that are not in the store yet, or not with all that was counted. Times are seconds of the epoch."""

    worker: str
    since: float
    windows: dict[int, Window] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    dropped: int = 0  # windows that were given up, the store being away for too long

    def add(self, traffic: TrafficProfile, now: float) -> None:
        """Count what came since `since`."""
        start = int(now // WINDOW_S * WINDOW_S)
        window = self.windows.get(start)
        if window is None:
            window = self.windows[start] = Window(start, self.worker, TrafficProfile(now=float(start)))
        if traffic.tallies:
            self.changed.add(start)
            window.traffic.merge(traffic)
        window.traffic.watch(max(0.0, now - self.since), now)
        self.since = now
        while len(self.windows) > _UNSAVED:
            oldest = min(self.windows)
            self.dropped += oldest in self.changed
            del self.windows[oldest]
            self.changed.discard(oldest)

    def unsaved(self) -> list[Window]:
        """What is to be written, oldest first."""
        return [self.windows[start] for start in sorted(self.changed)]

    def saved(self, windows: Sequence[Window]) -> None:
        """These are in the store as they are now; those that are over need not be kept."""
        self.changed.difference_update(window.start for window in windows)
        latest = max(self.windows, default=0)
        self.windows = {start: window for start, window in self.windows.items() if start == latest or start in self.changed}


class Profiling:
    """Reads at start, writes now and then. Lives on the worker's event loop; without a store it knows nothing and does nothing."""

    def __init__(
        self,
        store: ProfileStore | None,
        traffic: Traffic,
        cache: GraphCache,
        costs: CostTable,
        device: str,
        metrics: Metrics,
        worker: str,
        *,
        clock: Callable[[], float] = time,
    ) -> None:
        self.store = store
        self._traffic = traffic
        self._cache = cache
        self._costs = costs
        self._device = device  # for people
        self._metrics = metrics
        self._clock = clock
        self.breaker = Breaker()
        self._counted = Counted(worker, clock())
        self._told: dict[tuple[str, Bucket], tuple[float, float]] = {}  # costs in the store: eager and replay
        self._told_in = 0  # window
        self.informed = False  # whether `read` has learned what the store has
        self.patience_s = PATIENCE_S
        self.others = TrafficProfile(clock(), HALF_LIFE_S)
        self._records: dict[str, list[CostRecord]] = {}

    # -- what others left

    async def read(self) -> None:
        """Learn what the store has, if it answers within a moment. All attempts that fail share one `patience_s`."""
        if self.store is None or self.patience_s <= 0.0:
            return
        started = monotonic()
        try:
            found = await asyncio.wait_for(self.store.read(self._clock()), self.patience_s)
        except (StoreError, TimeoutError) as error:
            self.patience_s = max(0.0, self.patience_s - (monotonic() - started))
            self._failed("read", error)
            return
        self._went_well()
        self.informed = True
        self.others = await asyncio.to_thread(_merged, found.windows, self._clock())  # requests may be served meanwhile
        self._records = {}
        for record in found.costs:
            self._records.setdefault(record.program, []).append(record)

    async def read_again(self) -> None:
        """As `read`, later than at start: not while the store is left alone. What was known stays where there is no answer."""
        if self.breaker.allows(self._clock()):
            self.patience_s = PATIENCE_S
            await self.read()

    def promised(self, signature: Signature, ladder: BucketLadder) -> dict[Bucket, float]:
        """Runs that an hour will bring one worker, by ladder bucket, if traffic stays as it was."""
        runs: dict[Bucket, float] = {}
        largest = {name: sizes[-1] for name, sizes in ladder.axes}
        for shape, rate in self.others.rates(workload_of(signature)).items():
            if len(shape) == len(largest) and all(axis in largest for axis, _ in shape):
                # a rounded size may be above the maximum, and a maximum may have been lowered
                fit = ladder.fit({axis: min(size, largest[axis]) for axis, size in shape})
                if fit is not None and rate > 0.0:
                    runs[fit] = runs.get(fit, 0.0) + 3600.0 * rate
        return runs

    def records(self, signature: Signature) -> tuple[list[CostRecord], list[CostRecord]]:
        """Costs that were measured for this program: on devices and software like ours, and on others."""
        found = self._records.get(program_of(signature), [])
        return (
            [record for record in found if record.environment == signature.environment],
            [record for record in found if record.environment != signature.environment],
        )

    # -- what this worker leaves

    async def run(self) -> None:
        """Write every few seconds; ends by being cancelled."""
        task = asyncio.current_task()
        while task is None or not task.cancelling():  # a client library may take the cancellation for a time-out of its own
            await asyncio.sleep(FLUSH_S * (0.9 + 0.2 * self.breaker.jitter()))
            await self.flush()

    async def close(self) -> None:
        """Write what is left, if that can be done at once, and let go of the store."""
        if self.store is None:
            return
        try:
            await asyncio.wait_for(self.flush(), _FAREWELL_S)
            await asyncio.wait_for(self.store.close(), _FAREWELL_S)
        except TimeoutError:
            log.warning("profile store: did not take the last counts in time")

    async def flush(self) -> None:
        """Take what was counted, and write it if the store is not to be left alone."""
        now = self._clock()
        self._collect(now)
        if self.store is None or not self.breaker.allows(now):
            return
        windows, costs = self._counted.unsaved(), list(self._new_costs(now))
        if not windows and not costs:
            return
        try:
            await self.store.write(windows, costs, now)
        except StoreError as error:
            self._failed("write", error)
            return
        self._went_well()
        self._counted.saved(windows)
        for record in costs:
            self._told[record.program, Bucket(record.bucket)] = (record.eager_s, record.replay_s)

    def _collect(self, now: float) -> None:
        fresh = TrafficProfile(now)
        for signature, tally in self._traffic.take().items():
            found = fresh.tallies.setdefault(workload_of(signature), tally)
            if found is not tally:
                found.merge(tally)
        self._counted.add(fresh, now)

    def _new_costs(self, now: float) -> Iterator[CostRecord]:
        """What was measured for resident graphs and is not in the store; all of it once in a window, in case the store lost it."""
        window = int(now // WINDOW_S)
        if window != self._told_in:
            self._told, self._told_in = {}, window
        for entry in self._cache:
            key, graph = entry.key, entry.payload
            if not isinstance(graph, Graph) or graph.forced:  # nobody asked whether it pays
                continue
            figures = (
                self._costs.eager(key.signature, key.bucket),
                self._costs.replay(key.signature, key.bucket),
                self._costs.capture(key.signature, key.bucket),
            )
            eager_s, replay_s, capture_s = figures
            if eager_s is None or replay_s is None or capture_s is None:
                continue
            record = CostRecord(
                key.signature.environment,
                program_of(key.signature),
                shape_of(key.bucket.as_dict()),
                eager_s,
                replay_s,
                capture_s,
                entry.bytes,
                entry.arena_bytes,
                workload_of(key.signature).model,
                self._device,
            )
            told = self._told.get((record.program, Bucket(record.bucket)))
            if told is None or abs(eager_s - told[0]) > _CHANGED * told[0] or abs(replay_s - told[1]) > _CHANGED * told[1]:
                yield record

    # -- trouble

    def _failed(self, op: str, error: Exception) -> None:
        self._metrics.profile_store_error(op)
        told = log.info if self.breaker.broken else log.warning  # once for each outage
        told("profile store: %s; serving goes on without it", str(error) or "no answer in time")
        self.breaker.failed(self._clock())

    def _went_well(self) -> None:
        if self.breaker.broken:
            log.info("profile store: is back")
        self.breaker.succeeded()


def _merged(windows: Sequence[Window], now: float) -> TrafficProfile:
    """The traffic of all, decayed to now."""
    profile = TrafficProfile(now, HALF_LIFE_S)
    for window in windows:
        profile.merge(window.traffic)
    return profile


def workload_of(signature: Signature) -> Workload:
    """What a signature's traffic is counted under: versions and reloads of a model share it."""
    return Workload(signature.model, signature.variant, signature.phase)


def costs_by_bucket(records: Sequence[CostRecord]) -> Mapping[Bucket, tuple[float, float, float, int, int]]:
    """As `CostTable.load` takes them."""
    return {Bucket(r.bucket): (r.eager_s, r.replay_s, r.capture_s, r.bytes, r.arena_bytes) for r in records}
