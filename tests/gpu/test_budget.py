"""The budget contract on a CUDA device, and what only a device's free memory can tell."""

from __future__ import annotations

import asyncio
import random
from time import monotonic

import pytest
import torch

from cachepolicy.buckets import Bucket
from cachepolicy.cache import GraphEntry
from service.errors import CaptureRefused
from service.memory import MemoryReport
from service.messages import Path
from service.serving import Node
from tests.contracts.budget import *  # noqa: F403
from tests.harness import MODULES, ask, running, served, settled

pytestmark = pytest.mark.gpu

MIB = 1 << 20
DECODE_1B = """
cache: {budget: 4GiB, capture: {background: false}}
models:
  - name: decode
    factory: service.models.demo:decode
    args: {layers: 16, width: 2048, heads: 32, kv_heads: 8, hidden: 8192, vocabulary: 128256, dtype: bfloat16, logits: false}
    inputs:
      tokens: {datatype: INT64, shape: [batch], range: [0, 128255]}
      slots: {datatype: INT64, shape: [batch]}
      positions: {datatype: INT64, shape: [batch], range: [0, 255]}
    outputs:
      next_token: {datatype: INT64, shape: [batch]}
    axes:
      batch: {max: 64, buckets: [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]}
    rows: independent
    state:
      - {buffer: keys, index_input: slots, scratch: 8}
      - {buffer: values, index_input: slots, scratch: 8}
    phase: decode
"""


@pytest.fixture
def device() -> str:
    """Where the contract runs."""
    return "cuda:0"


@pytest.fixture
def tight() -> int:
    """Less than the arenas of all ten models, each with a workspace of 32 MiB."""
    return 256 * MIB


async def free_memory(node: Node) -> int:
    """What the driver calls free once the allocator has given back what it only keeps."""

    def settle() -> int:
        torch.cuda.current_stream().synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        return node.backend.memory().free

    return await asyncio.wrap_future(node.lane.submit(settle))


async def ledger_of(node: Node) -> MemoryReport:
    """The ledger once the capturer has done all that was asked of it."""
    await settled(node)
    return node.capturer.ledger.report()


async def test_the_ledger_agrees_with_the_device_over_random_captures_and_evictions() -> None:
    """200 captures and evictions of three models: its total stays within 3 % and 16 MiB of what the device lost."""
    rng = random.Random(9)
    sets = ["cache.capture.background=false", "cache.budget=4GiB"]
    worst = 0
    async with running("cuda:0", sets=sets) as node:
        keys = {}
        for model in ("mlp", "chain32", "encoder"):
            found = served(node, model)
            keys[model] = [found.key((), bucket) for bucket in found.ladder.buckets()]
            await node.admin.warm(model, "", keys[model][-1].bucket.as_dict(), {}, force=True)  # what is made once is made now
            await node.admin.evict(model, "", None, {})
        await settled(node)
        start, start_total = await free_memory(node), node.capturer.ledger.report().total
        for step in range(200):
            model = rng.choice(list(keys))
            bucket = rng.choice(keys[model]).bucket
            if rng.random() < 0.65:
                await node.admin.warm(model, "", bucket.as_dict(), {}, force=True)
            else:
                await node.admin.evict(model, "", bucket.as_dict() if rng.random() < 0.8 else None, {})
            report = await ledger_of(node)
            lost = start - await free_memory(node) + start_total
            worst = max(worst, abs(report.total - lost))
            assert abs(report.total - lost) <= 0.03 * lost + 16 * MIB, f"step {step}: ledger {report}, the device lost {lost}"
        print(f"largest difference {worst / MIB:.1f} MiB, at the end the ledger has {report.total / MIB:.1f} MiB")


async def test_an_eviction_returns_what_the_ledger_said() -> None:
    """All graphs of a model: freed and driver-retained bytes apart, as announced."""
    sets = ["cache.capture.background=false", "cache.budget=4GiB"]
    async with running("cuda:0", sets=sets) as node:
        for model in ("mlp", "encoder"):
            for bucket in list(served(node, model).ladder.buckets())[::-4]:
                await node.admin.warm(model, "", bucket.as_dict(), {}, force=True)
        for model in ("encoder", "mlp"):
            entries = [entry for entry in node.capturer.cache if entry.key.signature.weights.startswith(model)]
            promised = node.capturer.ledger.returns(entries)
            before, started = await free_memory(node), monotonic()
            await node.admin.evict(model, "", None, {})
            took = monotonic() - started
            returned = await free_memory(node) - before
            print(f"{model}: promised {promised}, returned {returned}, {took:.3f} s")
            assert abs(returned - promised.freed) <= 0.03 * promised.freed + 4 * MIB
            assert node.capturer.ledger.reusable >= promised.kept


async def test_shrinking_from_512_to_128_mib_under_load_fails_no_request() -> None:
    """The demo models under load; the change says what went back and what the driver kept.

    Each graph has a pool of its own: in shared arenas all of them together would stay below 128 MiB, and nothing would have to go.
    """
    async with running("cuda:0", sets=["cache.budget=512MiB", "cache.arena=graph"]) as node:
        for model in ("mlp", "chain32", "decode", "adapters"):
            for bucket in reversed(list(served(node, model).ladder.buckets())):
                await node.admin.warm(model, "", bucket.as_dict(), {}, force=True)
        done = asyncio.Event()

        async def client(number: int) -> None:
            rng, values = random.Random(number), torch.Generator().manual_seed(number)
            while not done.is_set():
                model, width = rng.choice((("mlp", 256), ("chain32", 1024), ("adapters", 128)))
                await ask(node, model, {"x": torch.randn(rng.randint(1, 32), width, generator=values)})

        clients = [asyncio.create_task(client(number)) for number in range(8)]
        await asyncio.sleep(1.0)
        before, started = node.capturer.cache.used, monotonic()
        assert before > 128 * MIB
        change = await node.admin.set_budget(128 * MIB)
        print(f"{before / MIB:.0f} MiB before; {change}; settled in {monotonic() - started:.3f} s")
        assert change.used <= 128 * MIB
        assert change.freed > 0
        assert before - change.used >= change.freed
        await asyncio.sleep(1.0)
        assert node.capturer.cache.used <= 128 * MIB
        done.set()
        await asyncio.gather(*clients)


async def test_eleven_buckets_of_a_large_decode_step_share_an_arena_that_shrinks_with_them() -> None:
    """The pool stays near what one shared pool was measured to take; with two buckets left, memory has come back."""
    async with running("cuda:0", DECODE_1B) as node:
        sizes = [bucket["batch"] for bucket in served(node, "decode").ladder.buckets()]
        for size in reversed(sizes):
            await node.admin.warm("decode", "", {"batch": size}, {}, force=True)
        entries: list[GraphEntry] = list(node.capturer.cache)
        assert len(entries) == 11
        (arena,) = {entry.arena for entry in entries}
        full = node.capturer.cache.arena_bytes(arena)
        free_full = await free_memory(node)
        print(f"arena {full / MIB:.1f} MiB, own {sum(entry.bytes for entry in entries) / MIB:.1f} MiB, {node.capturer.ledger.report()}")
        assert full <= 1.15 * 56 * MIB + 32 * MIB  # the pool, and the workspace that belongs to it
        for size in reversed(sizes[2:]):
            await node.admin.evict("decode", "", {"batch": size}, {})
        report = await ledger_of(node)
        assert sorted(entry.key.bucket["batch"] for entry in node.capturer.cache) == sizes[:2]
        left = sum(report.arenas.values())
        print(f"two buckets: arena {left / MIB:.1f} MiB, {(await free_memory(node) - free_full) / MIB:.1f} MiB came back")
        assert left < full
        assert await free_memory(node) - free_full >= full - left


def module(name: str, buckets: str, rows: str = "independent") -> str:
    return f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
cache: {{budget: 4GiB}}
models:
  - {{name: m, factory: "file:{MODULES}/{name}.py", rows: {rows}, axes: {{batch: {{max: 96, buckets: {buckets}}}}}}}
"""


async def outcome(node: Node, batch: int) -> str:
    """What becomes of requests of a size once the worker has made up its mind."""
    found = ""
    while not found.startswith(("replay", "refused")):
        outcome = (await ask(node, "m", {"x": torch.ones(batch, 1)})).outcome
        found = str(outcome.reason or outcome.path) + (f" {outcome.detail}" if outcome.detail else "")
        await asyncio.sleep(0.05)
    signature, bucket = served(node, "m").signature(()), Bucket.of(batch=batch)
    print(
        f"{batch}: {found}; eager {node.observer._costs.eager(signature, bucket)}, replay {node.observer._costs.replay(signature, bucket)}"
    )
    return found


async def test_a_compute_bound_model_is_refused_as_unprofitable() -> None:
    """Large matrix products: the graph is right, and saves too little."""
    async with running("cuda:0", module("gemm", "[1]")) as node:
        assert (await outcome(node, 1)).startswith("refused unprofitable: batch=1: eager")


async def test_a_model_is_captured_only_where_it_pays() -> None:
    """Faster at eight rows and equal at 96: the one is captured, the other refused, and neither is forced."""
    async with running("cuda:0", module("widening", "[8, 96]")) as node:
        assert await outcome(node, 8) == "replay"
        assert (await outcome(node, 96)).startswith("refused unprofitable")
        assert await outcome(node, 8) == "replay"  # the trial of the large one may have cost it its arena, and it is back
        assert [(info.bucket["batch"], info.state) for info in node.admin.graphs("m")] == [(8, "serving"), (96, "refused")]
        with pytest.raises(CaptureRefused, match="unprofitable"):
            await node.admin.warm("m", "", {"batch": 96}, {}, force=False)


async def test_the_encoder_turns_to_replay_within_a_handful_of_requests() -> None:
    """As a user tries it first: three rows of seventeen tokens, again and again."""
    async with running("cuda:0") as node:
        told = []
        for _ in range(40):
            outcome = (await ask(node, "encoder", {"tokens": torch.ones(3, 17, dtype=torch.int64)})).outcome
            told.append(str(outcome.reason or outcome.path))
            if outcome.path is Path.REPLAY:
                break
            await asyncio.sleep(0.3)
        print(told)
        assert told[-1] == "replay"
        assert told.count("not_captured") <= 10
