"""What a new worker captures before its first request: what its siblings serve, with what they measured."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from textwrap import indent
from time import time
from typing import Any

import pytest
import torch

from cachepolicy.buckets import Bucket, BucketLadder
from cachepolicy.capture import Capture
from cachepolicy.keys import GraphKey, Signature
from service.messages import Path as ServedBy
from service.prewarm import in_order, usual_buckets
from service.serving import Node
from tests.harness import MODULES, ask, running, served
from tests.samples import sample

MODEL = f"""
name: m
factory: file:{MODULES}/drudge.py
rows: independent
axes: {{batch: {{max: 64, buckets: [1, 2, 4, 8, 16, 32, 64]}}}}
"""
WORKER = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
"""
DRUDGE = f"""
{WORKER}
models:
  -{indent(MODEL, "    ")}
"""


def sets(folder: Path, *more: str) -> Sequence[str]:
    return [f"worker.state_dir={folder}", *more]


async def send(node: Node, batch: int, times: int) -> None:
    for _ in range(times):
        await ask(node, "m", {"x": torch.ones(batch, 4)})


async def sibling(folder: Path) -> None:
    """Another worker that serves sizes 3 and 20, and leaves what it learned."""
    async with running("cpu", DRUDGE, sets(folder, "cache.capture.background=false")) as node:
        await warm_all_measured(node, (4, 32))
        await send(node, 3, 60)
        await send(node, 20, 40)
        await node.profiling.close()


async def warm_all_measured(node: Node, sizes: Sequence[int]) -> None:
    for size in sizes:
        await node.admin.warm("m", "", {"batch": size}, {}, force=False)


async def prepared(node: Node) -> list[int]:
    """Prewarm; returns the batch sizes of the graphs."""
    await node.profiling.read()
    await node.prewarm.run()
    return sorted(entry.key.bucket["batch"] for entry in node.capturer.cache)


async def test_a_new_worker_captures_what_its_sibling_serves_without_measuring_again(tmp_path: Path) -> None:
    """Only what carries traffic (a graph for 32 rows may serve 3 as well), and such requests are replayed from the first on."""
    await sibling(tmp_path)
    async with running("cpu", DRUDGE, sets(tmp_path)) as node:

        def measure(*_: Any, **__: Any) -> None:
            raise AssertionError("measured again")

        node.capturer._recorder.measure = measure  # type: ignore[assignment]
        found = await prepared(node)
        assert found in ([32], [4, 32])
        progress = node.prewarm.progress
        assert (progress.captured, progress.refused, progress.over) == (len(found), 0, True)
        for batch in (3, 20):
            assert (await ask(node, "m", {"x": torch.ones(batch, 4)})).outcome.path is ServedBy.REPLAY
        assert sample(node.prewarm.metrics.registry.text(), 'graphcache_prewarm_graphs{state="captured"}') == len(found)


async def test_a_model_that_is_loaded_later_gets_what_its_siblings_left_since_the_start(tmp_path: Path) -> None:
    """Its graphs are neither measured again nor counted as captured before traffic."""
    async with running("cpu", WORKER, sets(tmp_path)) as node:
        assert await prepared(node) == []
        await sibling(tmp_path)

        def measure(*_: Any, **__: Any) -> None:
            raise AssertionError("measured again")

        node.capturer._recorder.measure = measure  # type: ignore[assignment]
        await node.admin.load(MODEL)
        await node.prewarm.one(served(node, "m"))
        assert sorted(entry.key.bucket["batch"] for entry in node.capturer.cache) in ([32], [4, 32])
        for batch in (3, 20):
            assert (await ask(node, "m", {"x": torch.ones(batch, 4)})).outcome.path is ServedBy.REPLAY
        assert (node.prewarm.progress.captured, node.prewarm.progress.refused) == (0, 0)


async def test_a_reloaded_model_gets_what_is_listed_and_what_was_known(tmp_path: Path) -> None:
    """Although the store is away by now."""
    await sibling(tmp_path)
    async with running("cpu", DRUDGE, sets(tmp_path, "cache.prewarm.list=[{model: m, shape: {batch: 1}}]")) as node:
        before = await prepared(node)
        assert before in ([1, 32], [1, 4, 32])
        node.profiling.breaker.failed(time())
        (tmp_path / "profile.1.sqlite3").unlink()
        await node.admin.reload("m")
        assert len(node.capturer.cache) == 0
        await node.prewarm.one(served(node, "m"))
        assert sorted(entry.key.bucket["batch"] for entry in node.capturer.cache) == before


async def test_costs_of_another_environment_are_not_used(tmp_path: Path) -> None:
    """They choose at most what is measured first: every graph that serves was measured here."""
    await sibling(tmp_path)
    with closing(sqlite3.connect(tmp_path / "profile.1.sqlite3")) as connection:
        for field, value in connection.execute("SELECT field, value FROM costs").fetchall():
            foreign = json.dumps({**json.loads(field), "environment": "another"})
            absurd = json.dumps({**json.loads(value), "eager_s": 1e-9, "replay_s": 1000.0})
            connection.execute("UPDATE costs SET field = ?, value = ? WHERE field = ?", (foreign, absurd, field))
        connection.commit()
    measured = []
    async with running("cpu", DRUDGE, sets(tmp_path)) as node:
        measure = node.capturer._recorder.measure

        def noted(*arguments: Any, **options: Any) -> Any:
            measured.append(arguments[2].bucket["batch"])
            return measure(*arguments, **options)

        node.capturer._recorder.measure = noted  # type: ignore[method-assign]
        found = await prepared(node)
        assert found
        assert set(found) <= set(measured)
        assert set(found) <= {4, 32}


async def test_without_a_profile_a_few_buckets_are_captured_after_readiness(tmp_path: Path) -> None:
    """Readiness waits for nothing; then the largest, the smallest, and powers of two between."""
    async with running("cpu", DRUDGE, sets(tmp_path)) as node:
        assert await prepared(node) == []
        await node.prewarm.usual()
        assert sorted(entry.key.bucket["batch"] for entry in node.capturer.cache) == [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize(
    "switched", ["cache.prewarm.graphs=0", "cache.prewarm.at_most=0", "cache.capture.background=false", "models.0.mode='none'"]
)
async def test_a_prewarm_can_be_switched_off(tmp_path: Path, switched: str) -> None:
    """By number, by time, with all captures of the policy, or for a model."""
    await sibling(tmp_path)
    async with running("cpu", DRUDGE, sets(tmp_path, switched)) as node:
        await node.profiling.read()
        await node.prewarm.run()
        await node.prewarm.usual()
        await asyncio.wrap_future(node.capturer.evict([]))  # what is in hand ends before this
        assert len(node.capturer.cache) <= (switched == "cache.prewarm.at_most=0")


async def test_a_budget_bounds_what_is_captured_without_a_profile(tmp_path: Path) -> None:
    """No graph is evicted for another."""
    async with running("cpu", DRUDGE, sets(tmp_path, "cache.budget=4000")) as node:
        await prepared(node)
        await node.prewarm.usual()
        assert 0 < len(node.capturer.cache) < 7
        assert sample(node.prewarm.metrics.registry.text(), 'graphcache_evictions_total{model="m"}') == 0


@pytest.mark.parametrize(
    ("ladder", "buckets"),
    [
        (BucketLadder.of(batch=(1, 2, 4, 8)), ["batch=8", "batch=1", "batch=4", "batch=2"]),
        (BucketLadder.of(batch=(3, 6, 7, 100)), ["batch=100", "batch=3", "batch=6"]),
        (BucketLadder.of(batch=(5,)), ["batch=5"]),
        (BucketLadder.of(batch=(1, 2), seq=(32, 64, 128)), ["batch=2,seq=128", "batch=1,seq=32", "batch=1,seq=64"]),
    ],
)
def test_usual_buckets_are_the_largest_the_smallest_and_powers_between(ladder: BucketLadder, buckets: list[str]) -> None:
    """On one axis or several."""
    assert [str(bucket) for bucket in usual_buckets(ladder)] == buckets


def test_captures_are_ordered_by_gain_with_each_models_largest_first() -> None:
    """An arena gains from that."""
    first, second = Signature("e", "p", "a:1@1"), Signature("e", "q", "b:1@1")
    planned = [
        Capture(GraphKey(first, Bucket.of(batch=64)), 1.0),
        Capture(GraphKey(first, Bucket.of(batch=4)), 9.0),
        Capture(GraphKey(second, Bucket.of(batch=8)), 5.0),
        Capture(GraphKey(second, Bucket.of(batch=2)), 0.5),
    ]
    assert [str(key) for key in in_order(planned)] == ["a:1@1/batch=64", "a:1@1/batch=4", "b:1@1/batch=8", "b:1@1/batch=2"]
