"""Captures and evictions without end, beside clients. Collected for the CPU (briefly) and for a CUDA device (a minute)."""

from __future__ import annotations

import asyncio
import os
import random
from time import monotonic

import torch

from service.messages import Path
from tests.harness import ask, eager, running, served, value

MODELS = {"mlp": 256, "chain32": 1024, "adapters": 128}
FLAT = 16 << 20  # bytes that free memory may move by once the worker has met everything


def free_memory() -> int:
    """What the driver calls free once workspaces and unused blocks went back. On the lane."""
    torch.cuda.current_stream().synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])


async def test_captures_and_evictions_beside_clients_fail_no_request_and_leak_nothing(device: str) -> None:
    """Eight clients on three models while graphs come and go: every value right, free memory flat, no stranger's tensor overwritten."""
    seconds = float(os.environ.get("GRAPHCACHE_CHURN_S", "60" if device != "cpu" else "6"))
    cuda = device != "cpu"
    async with running(device, sets=["cache.capture.background=false"]) as node:
        ends = monotonic() + seconds
        strangers = [torch.full((1 << 18,), float(number), device=device) for number in range(16)]
        counts = {"replies": 0, "replayed": 0, "captures": 0, "evictions": 0}
        free: list[int] = []
        quiet, measuring = asyncio.Event(), asyncio.Event()  # nothing is captured while memory is measured
        referring = asyncio.Lock()  # nor does a reference run
        measuring.set()

        async def client(number: int) -> None:
            own = torch.Generator().manual_seed(number)
            while monotonic() < ends:
                model = ("mlp", "chain32", "adapters")[number % 3]
                x = {"x": torch.randn(1 + number % 7, MODELS[model], generator=own)}
                reply = await ask(node, model, x)
                variant = {"adapter": "base"} if model == "adapters" else {}
                async with referring:  # in one thread at a time: each has a workspace of its own, which would be counted
                    want = await asyncio.to_thread(eager, served(node, model).loaded, x, variant)
                torch.testing.assert_close(value(reply.outputs["y"]), want["y"], rtol=1e-4, atol=1e-4)
                counts["replies"] += 1
                counts["replayed"] += reply.outcome.path is Path.REPLAY

        async def churn() -> None:
            rng = random.Random(4)
            while monotonic() < ends:
                quiet.set()
                await measuring.wait()
                quiet.clear()
                model, batch = rng.choice(list(MODELS)), rng.choice((1, 2, 4, 8, 16))
                await node.admin.warm(model, "", {"batch": batch}, {}, force=True)
                counts["captures"] += 1
                if rng.random() < 0.7:
                    counts["evictions"] += await node.admin.evict(model, "", None if rng.random() < 0.3 else {"batch": batch}, {})
                if cuda and rng.random() < 0.5:
                    torch._C._cuda_clearCublasWorkspaces()
            quiet.set()

        async def watch() -> None:
            while monotonic() < ends:
                await asyncio.sleep(seconds / 12)
                measuring.clear()
                await quiet.wait()
                if cuda:
                    for model in MODELS:
                        await node.admin.evict(model, "", None, {})
                    async with referring:
                        free.append(await asyncio.wrap_future(node.lane.submit(free_memory)))
                measuring.set()

        await asyncio.gather(churn(), watch(), *(client(number) for number in range(8)))
        for number, stranger in enumerate(strangers):
            assert bool((stranger == number).all()), f"stranger {number} was overwritten"
        settled = free[len(free) // 3 :]
        print(f"{device}: {seconds:.0f} s, {counts}, free MiB {[size >> 20 for size in free]}")
        assert not settled or max(settled) - min(settled) <= FLAT, [size >> 20 for size in free]
        assert counts["captures"] > 3
        assert counts["replayed"] > 0
        node.capturer.cache.check_integrity()
