"""The ledger and arenas, with a CPU backend whose recordings are said to live in arenas: sizes as a GPU has them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from time import sleep
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from cachepolicy.buckets import Bucket
from cachepolicy.cache import GraphCache, GraphEntry
from cachepolicy.capture import Action, Evict, Rebuild
from cachepolicy.keys import GraphKey, Signature
from service.backends.base import Backend, DeviceMemory, Recording
from service.jobs import Turn
from service.memory import Ledger, Returned
from service.messages import Path
from service.serving import Node
from tests.harness import MODULES, ask, running, served, settled

MIB = 1 << 20
TEXT = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
cache: {{capture: {{background: false}}}}
models:
  - {{name: m, factory: "file:{MODULES}/affine.py", rows: independent, axes: {{batch: {{max: 8, buckets: [1, 2, 4, 8]}}}}}}
"""


def arenas(node: Node) -> Callable[[], int]:
    """Recordings live in one arena of MiBs as large as the largest bucket that it has held since it was last empty."""
    alive: list[int] = []
    high = 0
    backend = node.backend
    record, destroy = backend.record, node.capturer.ledger.close

    def in_arena(model: Any, variant: Any, bucket: Bucket, **options: Any) -> Recording:
        nonlocal high
        recording = cast("Any", record(model, variant, bucket, **options))
        alive.append(bucket.volume)
        high = max(high, bucket.volume)
        recording.arena, recording.arena_bytes, recording.driver_bytes = "arena", high * MIB, 1000
        recording.bytes += 1000
        return cast("Recording", recording)

    def close(recording: Recording) -> None:
        nonlocal high
        alive.remove(recording.bucket.volume)
        if not alive:
            high = 0
        destroy(recording)

    backend.record = in_arena  # type: ignore[method-assign]
    backend.arena_bytes = lambda arena: high * MIB  # type: ignore[method-assign] # noqa: ARG005
    node.capturer.ledger.close = close  # type: ignore[method-assign]
    return lambda: high * MIB


async def warm(node: Node, *batches: int) -> None:
    for batch in batches:
        await node.admin.warm("m", "", {"batch": batch}, {}, force=True)


async def test_evicting_the_top_of_an_arena_gives_its_memory_back() -> None:
    """The survivors are recorded again after that; the others' eviction frees nothing but their own bytes."""
    async with running("cpu", TEXT) as node:
        measured = arenas(node)
        await warm(node, 8, 4, 2, 1)
        assert measured() == node.capturer.cache.arena_bytes("arena") == 8 * MIB
        await node.admin.evict("m", "", {"batch": 1}, {})
        await settled(node)
        assert measured() == 8 * MIB
        await node.admin.evict("m", "", {"batch": 8}, {})
        await settled(node)
        assert measured() == node.capturer.cache.arena_bytes("arena") == 4 * MIB
        assert sorted(entry.key.bucket["batch"] for entry in node.capturer.cache) == [2, 4]
        assert (await ask(node, "m", {"input": torch.ones(3, 4)})).outcome.path is Path.REPLAY
        node.capturer.cache.check_integrity()


async def test_an_arena_with_a_pinned_graph_is_not_rebuilt() -> None:
    """Pinned graphs stay whatever the pressure."""
    async with running("cpu", TEXT) as node:
        arenas(node)
        await warm(node, 8, 2)
        node.admin.pin("m", "", {"batch": 2}, {}, True)
        entry = next(entry for entry in node.capturer.cache if entry.pinned)
        await node.admin.evict("m", "", {"batch": 8}, {})
        await settled(node)
        assert list(node.capturer.cache) == [entry]


async def test_a_rebuild_serves_eagerly_meanwhile_and_fails_no_request() -> None:
    """Requests go on while the policy's actions drop the arena and record its graphs again."""
    async with running("cpu", TEXT) as node:
        measured = arenas(node)
        await warm(node, 8, 4, 2)
        found = served(node, "m")
        signature = found.signature(())
        top = found.key((), Bucket.of(batch=8))
        plan: list[Action] = [Evict(top), Rebuild(signature)]

        def decide(cache: GraphCache, now: float) -> list[Action]:
            actions, plan[:] = list(plan), []
            return actions

        node.capturer._follower._admission.decide = decide  # type: ignore[method-assign]
        node.capturer._thread.put(node.capturer._follower.follow, Turn.POLICY)
        done = asyncio.ensure_future(settled(node))
        reasons = set()
        while not done.done():
            outcome = (await ask(node, "m", {"input": torch.ones(2, 4)})).outcome
            reasons.add(str(outcome.reason or outcome.path))
        assert reasons <= {"replay", "evicted", "capture_pending"}
        assert measured() == 4 * MIB
        assert (await ask(node, "m", {"input": torch.ones(2, 4)})).outcome.path is Path.REPLAY


async def test_what_is_evicted_while_its_arena_is_made_anew_stays_away() -> None:
    """One that is being recorded again, and one that is to be after it: neither comes back."""
    async with running("cpu", TEXT) as node:
        measured = arenas(node)
        await warm(node, 8, 4, 2, 1)
        begun, go = threading.Event(), threading.Event()
        record = node.backend.record

        def waiting(*arguments: Any, **options: Any) -> Recording:
            begun.set()
            go.wait()
            return record(*arguments, **options)

        node.backend.record = waiting  # type: ignore[method-assign]
        assert await node.admin.evict("m", "", {"batch": 8}, {}) == 1
        await asyncio.to_thread(begun.wait)
        assert not list(node.capturer.cache)
        evicting = [asyncio.create_task(node.admin.evict("m", "", {"batch": size}, {})) for size in (4, 2)]
        await asyncio.sleep(0)
        go.set()
        assert await asyncio.gather(*evicting) == [1, 1]
        await settled(node)
        assert [entry.key.bucket["batch"] for entry in node.capturer.cache] == [1]
        assert measured() == MIB


async def test_a_graph_that_serves_without_a_pause_is_evicted_at_once() -> None:
    """Somebody has it in use at every moment that another thread could look."""
    async with running("cpu", TEXT) as node:
        await warm(node, 8)
        cache, (entry,) = node.capturer.cache, list(node.capturer.cache)
        begun = threading.Event()

        def serve() -> None:
            found = cache.acquire(entry.key.signature, {"batch": 8}, entry.key.bucket)
            if found is not None:
                node.lane.post(serve)
                begun.set()
                sleep(0.01)
                cache.release(found)

        node.lane.post(serve)
        await asyncio.to_thread(begun.wait)
        assert await node.admin.evict("m", "", {"batch": 8}, {}) == 1
        assert not list(cache)


async def test_a_refused_capture_that_enlarged_an_arena_is_counted() -> None:
    """The budget follows what is measured, not what was admitted."""
    async with running("cpu", TEXT) as node:
        measured = arenas(node)
        await warm(node, 2)
        node.capturer._recorder._min_gain = 1e9
        with pytest.raises(Exception, match="unprofitable"):
            await node.admin.warm("m", "", {"batch": 8}, {}, force=False)
        assert measured() == node.capturer.cache.arena_bytes("arena") == 8 * MIB


async def test_victims_go_before_the_capture_that_needs_their_room() -> None:
    """What was predicted from an earlier capture of the bucket is free when the recording begins."""
    async with running("cpu", TEXT) as node:
        await warm(node, 8, 4)
        sizes = {entry.key.bucket["batch"]: entry.bytes for entry in node.capturer.cache}
        await node.admin.evict("m", "", {"batch": 8}, {})
        await node.admin.set_budget(sizes[8] + 1)
        record, seen = node.backend.record, []

        def watching(*args: Any, **options: Any) -> Any:
            seen.append(node.capturer.cache.used)
            return record(*args, **options)

        node.backend.record = watching  # type: ignore[method-assign]
        await warm(node, 8)
        assert seen == [0]
        assert [entry.key.bucket["batch"] for entry in node.capturer.cache] == [8]


def entry(at: int, arena: str, arena_bytes: int, own: int = 100, driver: int = 40) -> GraphEntry:
    signature = Signature("cpu", "p", arena or "alone")
    recording = SimpleNamespace(driver_bytes=driver, arena=arena, close=lambda: None)
    return GraphEntry(GraphKey(signature, Bucket.of(batch=at)), SimpleNamespace(recording=recording), own, arena, arena_bytes)


def test_the_ledger_says_what_an_eviction_returns() -> None:
    """Of an arena nothing until all of it goes; the driver keeps most of what is its own."""
    cache = GraphCache(10_000)
    backend = SimpleNamespace(memory=DeviceMemory, arena_bytes=lambda _: 2000)
    ledger = Ledger(cast("Backend", backend), cache)
    entries = [entry(1, "a", 1500), entry(2, "a", 2000), entry(1, "", 0)]
    for one in entries:
        cache.insert(one, 0.0)
    assert ledger.returns(entries[:1]) == Returned(freed=64, kept=36)
    assert ledger.returns(entries[:2]) == Returned(freed=2128, kept=72)
    assert ledger.returns(entries[2:]) == Returned(freed=64, kept=36)
    report = ledger.report()
    assert (report.own, report.arenas, report.used, report.reusable) == (300, {"a": 2000}, 2300, 0)


def test_what_the_driver_keeps_is_used_by_later_graphs() -> None:
    """It grows with each destroyed graph and shrinks with each new one, and never below nothing."""
    backend = SimpleNamespace(memory=DeviceMemory, arena_bytes=lambda _: 0)
    ledger = Ledger(cast("Backend", backend), GraphCache(10_000))
    recording = cast("Recording", SimpleNamespace(driver_bytes=1000, arena="", close=lambda: None))
    ledger.recorded(recording)
    assert ledger.reusable == 0
    ledger.close(recording)
    assert ledger.reusable == 900
    ledger.recorded(recording)
    assert ledger.reusable == 0


def test_a_device_that_is_short_of_memory_says_by_how_much() -> None:
    """What the allocator holds and has not given out counts as available."""
    memory = DeviceMemory(free=100, total=1000, detail={"reserved": 300, "allocated": 250})
    ledger = Ledger(cast("Backend", SimpleNamespace(memory=lambda: memory)), GraphCache(0))
    assert ledger.lacks(150) == 0
    assert ledger.lacks(200) == 50
