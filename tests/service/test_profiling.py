"""What a worker writes for others: once, whatever happens to the store; and what it makes of what it reads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cachepolicy.buckets import Bucket, BucketLadder
from cachepolicy.cache import GraphCache
from cachepolicy.costs import CostTable
from cachepolicy.keys import GraphKey, Signature
from cachepolicy.profile import TrafficProfile, Workload, shape_of
from service.profiling import FLUSH_S, Breaker, Counted, Profiling
from service.stores.base import WINDOW_S, Contents, CostRecord, StoreError, program_of
from service.stores.opening import open_store
from service.telemetry.metrics import Metrics
from service.traffic import Traffic
from tests.samples import sample
from tests.valkey import Server, valkey

START = 1_800_000_000.0
SIGNATURE = Signature("e", "p", "encoder:1@1", (("adapter", "base"),))
KEY = GraphKey(SIGNATURE, Bucket.of(batch=4))
WORKLOAD = Workload("encoder", (("adapter", "base"),))


class Clock:
    now = START

    def __call__(self) -> float:
        return self.now


class Bench:
    """A worker's profiling on a store, with a clock that tests move."""

    def __init__(self, setting: str, folder: Path, worker: str = "one") -> None:
        self.clock, self.traffic, self.metrics = Clock(), Traffic(), Metrics()
        store = open_store(setting, folder, lambda: self.metrics.profile_store_error("record"))
        cache, costs = GraphCache(1 << 20), CostTable()
        self.profiling = Profiling(store, self.traffic, cache, costs, "a device", self.metrics, worker, clock=self.clock)
        self.profiling.breaker.jitter = lambda: 1.0

    async def serve(self, runs: int, batch: int = 3, after_s: float = FLUSH_S) -> None:
        for _ in range(runs):
            self.traffic.note(KEY, {"batch": batch})
        self.clock.now += after_s
        await self.profiling.flush()

    def errors(self, op: str) -> float:
        return sample(self.metrics.registry.text(), f'graphcache_profile_store_errors_total{{op="{op}"}}')


class Deaf:
    """A store that once takes a cancellation for trouble of its own, as redis-py does where a time-out is due at the same moment."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def read(self, now: float) -> Contents:
        raise NotImplementedError

    async def write(self, windows: object, costs: object, now: float) -> None:
        first = not self.asked.is_set()
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if first:
                raise StoreError("time-out") from None
            raise

    async def close(self) -> None:
        pass


async def test_writing_ends_though_the_store_swallows_the_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a worker that leaves would write on, beside its own farewell."""
    monkeypatch.setattr("service.profiling.FLUSH_S", 0.0)
    store, traffic = Deaf(), Traffic()
    profiling = Profiling(store, traffic, GraphCache(1 << 20), CostTable(), "a device", Metrics(), "one")
    traffic.note(KEY, {"batch": 3})
    writing = asyncio.create_task(profiling.run())
    await store.asked.wait()
    writing.cancel()
    done, _ = await asyncio.wait([writing], timeout=10.0)
    assert done == {writing}


async def stored(server: Server, now: float) -> dict[str, float]:
    """Runs in the store, by worker."""
    store = open_store(server.url, Path(), lambda: None)
    assert store is not None
    found = await store.read(now)
    await store.close()
    runs: dict[str, float] = {}
    for window in found.windows:
        runs[window.worker] = runs.get(window.worker, 0.0) + window.traffic.tallies[WORKLOAD].total
    return runs


def test_a_breaker_waits_longer_each_time_and_never_longer_than_its_bound() -> None:
    """Half of the delay is jitter; one success forgets all failures."""
    breaker = Breaker(jitter=lambda: 0.0)
    delays = []
    for _ in range(8):
        breaker.failed(100.0)
        delays.append(next(seconds / 2 for seconds in range(1, 100) if breaker.allows(100.0 + seconds / 2)))
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]
    assert not Breaker(jitter=lambda: 1.0).broken
    breaker.succeeded()
    assert breaker.allows(100.0)
    assert not breaker.broken


async def test_counts_are_written_by_windows_and_only_when_there_are_new_ones(tmp_path: Path) -> None:
    """Two windows of ten minutes; what was idle writes nothing."""
    with valkey() as server:
        bench = Bench(server.url, tmp_path)
        await bench.serve(5)
        await bench.serve(2, after_s=WINDOW_S)
        assert await stored(server, bench.clock.now) == {"one": 7.0}
        with server.client() as client:
            assert len(list(client.scan_iter("*:traffic:*"))) == 2
            client.flushall()
            await bench.serve(0)
            assert list(client.scan_iter()) == []
        await bench.profiling.close()


async def test_an_outage_loses_no_counts_and_counts_none_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Killed, served on, back and empty: everything since the window began is written, once, with one warning for the outage."""
    with valkey() as server:
        bench = Bench(server.url, tmp_path)
        await bench.serve(5)
        server.kill()
        for _ in range(3):
            await bench.serve(10)
        server.start()
        await bench.serve(1, after_s=40.0)
        await bench.serve(1)
        assert await stored(server, bench.clock.now) == {"one": 37.0}
        assert bench.errors("write") >= 1
        (told,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert "serving goes on without it" in told
        await bench.profiling.close()


async def test_windows_that_end_during_an_outage_are_written_after_it(tmp_path: Path) -> None:
    """Although nothing is counted in them any more."""
    with valkey() as server:
        bench = Bench(server.url, tmp_path)
        server.kill()
        await bench.serve(3, after_s=WINDOW_S)
        await bench.serve(4, after_s=WINDOW_S)
        server.start()
        await bench.serve(0, after_s=WINDOW_S)
        assert await stored(server, bench.clock.now) == {"one": 7.0}
        await bench.profiling.close()


async def test_what_is_kept_during_an_outage_is_bounded() -> None:
    """The oldest windows go first, and their loss is counted."""
    counted = Counted("one", START)
    for number in range(20):
        fresh = TrafficProfile(START + number * WINDOW_S)
        fresh.note(WORKLOAD, shape_of({"batch": 1}), fresh.now)
        counted.add(fresh, fresh.now)
    assert [window.start for window in counted.unsaved()] == [START + number * WINDOW_S for number in range(8, 20)]
    assert counted.dropped == 8


async def test_the_last_counts_are_written_on_leaving(tmp_path: Path) -> None:
    """Close flushes."""
    with valkey() as server:
        bench = Bench(server.url, tmp_path)
        bench.traffic.note(KEY, {"batch": 3})
        await bench.profiling.close()
        assert await stored(server, START) == {"one": 1.0}


@pytest.mark.parametrize("setting", ["none", "sqlite"])
async def test_a_worker_without_others_is_promised_nothing(setting: str, tmp_path: Path) -> None:
    """Neither traffic nor costs; no errors."""
    bench = Bench(setting, tmp_path)
    await bench.profiling.read()
    await bench.serve(3)
    assert bench.profiling.promised(SIGNATURE, BucketLadder.of(batch=(1, 8))) == {}
    assert bench.profiling.records(SIGNATURE) == ([], [])
    assert (bench.errors("read"), bench.errors("write")) == (0, 0)
    await bench.profiling.close()


async def test_traffic_of_several_workers_becomes_runs_an_hour_of_one_by_bucket(tmp_path: Path) -> None:
    """Exact sizes fall into the ladder that the reader has; what can't be the model's is left out."""
    for worker in ("one", "two"):
        bench = Bench("sqlite", tmp_path, worker)
        await bench.serve(60, batch=3, after_s=30.0)
        await bench.serve(60, batch=64, after_s=30.0)
        bench.traffic.note(KEY, {"rows": 3})
        await bench.profiling.close()
    reader = Bench("sqlite", tmp_path, "three")
    reader.clock.now = START + 60
    await reader.profiling.read()
    promised = reader.profiling.promised(SIGNATURE, BucketLadder.of(batch=(1, 4, 32)))
    assert promised == {Bucket.of(batch=4): pytest.approx(3600, rel=0.05), Bucket.of(batch=32): pytest.approx(3600, rel=0.05)}
    await reader.profiling.close()


async def test_costs_of_our_kind_and_of_others_are_told_apart(tmp_path: Path) -> None:
    """By the environment's fingerprint."""
    bench = Bench("sqlite", tmp_path)
    ours, program = SIGNATURE.environment, program_of(SIGNATURE)
    records = [CostRecord(where, program, (("batch", 4),), 0.004, 0.001, 0.05, 1, 2) for where in (ours, "another")]
    await bench.profiling.store.write([], records, START)  # type: ignore[union-attr]
    await bench.profiling.read()
    own, foreign = bench.profiling.records(SIGNATURE)
    assert ([record.environment for record in own], [record.environment for record in foreign]) == ([ours], ["another"])
    await bench.profiling.close()


async def test_a_store_that_does_not_answer_is_given_up_after_a_moment(tmp_path: Path) -> None:
    """A frozen server: a few attempts, until together they have taken what a start may wait; then none."""
    with valkey() as server:
        bench = Bench(server.url, tmp_path)
        with server.frozen():
            for _ in range(20):
                await bench.profiling.read()
        failed = bench.errors("read")
        assert 1 <= failed <= 5
        await bench.profiling.read()
        assert (bench.errors("read"), bench.profiling.informed) == (failed, False)
        await bench.profiling.close()
