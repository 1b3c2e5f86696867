"""What a steady stream of requests feels of captures in the background, and what the bound on a graph's nodes does about large ones.

    python benchmarks/capture_stall.py [--device cuda:0] [--graphs 20] [--clients 4]

Clients ask a model whose graphs are resident, with a pause after each reply. Rounds without captures alternate with rounds in which the
graphs of another model are captured and proven one after the other. Then the same with single captures of long chains of operations, with
`cache.capture.max_nodes` far above and below their length. Percentiles are of `await worker.infer(...)`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from service import garbage
from service.config import load
from service.errors import CaptureRefused
from service.messages import InferRequest
from service.serving import Node, assemble
from service.tensors import Datatype, HostTensor

CHAIN = """
  - name: {name}
    factory: service.models.demo:chain32
    args: {{length: {length}}}
    inputs: {{x: {{datatype: FP32, shape: [batch, 1024]}}}}
    outputs: {{y: {{datatype: FP32, shape: [batch, 1024]}}}}
    axes: {{batch: {{max: {most}, buckets: {buckets}}}}}
    rows: independent"""
PAUSE_S = 0.002
ROUNDS = 4


@asynccontextmanager
async def worker(device: str, models: str, max_nodes: int) -> AsyncIterator[Node]:
    """A worker in this process, the graphs of `asked` resident."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "worker.yaml"
        path.write_text(
            f"cache: {{budget: 4GiB, capture: {{background: false, max_nodes: {max_nodes}}}, audit: 0%}}\nmodels:"
            + CHAIN.format(name="asked", length=32, most=8, buckets=[1, 2, 4, 8])
            + models
        )
        config = load(path, [f"worker.device={device}"])
    node = assemble(config)
    for model in config.models:
        await node.admin.load_config(model)
    garbage.keep()
    node.worker.prewarmed()
    for batch in (8, 4, 2, 1):
        await node.admin.warm("asked", "", {"batch": batch}, {}, force=True)
    yield node
    node.close()


async def ask(node: Node, seed: int, go_on: Callable[[], bool], latencies: list[float]) -> None:
    """One client: a request, a pause, the next."""
    rng, values = random.Random(seed), np.random.default_rng(seed)
    while go_on():
        x = HostTensor.of(Datatype.FP32, values.standard_normal((rng.randint(1, 4), 1024)).astype(np.float32))
        started = perf_counter()
        await node.worker.infer(InferRequest("asked", {"x": x}))
        latencies.append(perf_counter() - started)
        await asyncio.sleep(PAUSE_S * 2 * rng.random())


async def beside(node: Node, clients: int, work: Callable[[], Awaitable[object]], latencies: list[float]) -> float:
    """Clients ask until `work` is done; its seconds."""
    started, done = monotonic(), False
    asking = [asyncio.create_task(ask(node, seed, lambda: not done, latencies)) for seed in range(clients)]
    await work()
    done = True
    await asyncio.gather(*asking)
    return monotonic() - started


def show(what: str, latencies: list[float], quiet: list[float]) -> None:
    """One line, against the quiet rounds."""
    p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
    most, ratio = max(latencies) * 1e3, p99 / (np.percentile(quiet, 99) * 1e3)
    above = most - max(quiet) * 1e3
    print(f"{what}: {len(latencies)} requests, p50 {p50:.3f}, p99 {p99:.3f}, max {most:.2f} ms; p99 × {ratio:.2f}, max {above:+.2f} ms")


async def many(device: str, graphs: int, clients: int) -> None:
    """Many captures of ordinary length."""
    buckets = list(range(1, graphs + 1))
    async with worker(device, CHAIN.format(name="captured", length=50, most=graphs, buckets=buckets), 5000) as node:
        quiet: list[float] = []
        busy: list[float] = []

        async def capture(sizes: list[int]) -> None:
            for size in sizes:
                await node.admin.warm("captured", "", {"batch": size}, {}, force=True)

        await capture([graphs])  # judged once
        await node.admin.evict("captured", "", None, {})
        await beside(node, clients, partial(asyncio.sleep, 0.5), [])
        seconds = 0.0
        order = buckets[::-1]
        for at in range(ROUNDS):
            share = order[at * graphs // ROUNDS : (at + 1) * graphs // ROUNDS]
            took = await beside(node, clients, partial(capture, share), busy)
            await beside(node, clients, partial(asyncio.sleep, max(1.0, took)), quiet)
            seconds += took
        show("without captures", quiet, quiet)
        show(f"while {graphs} graphs of 100 operations are captured and proven in {seconds:.1f} s", busy, quiet)


async def capture_one(node: Node, said: list[str]) -> None:
    """One graph of the model `long`; what came of it."""
    try:
        await node.admin.warm("long", "", {"batch": 8}, {}, force=True)
        said.append("captured")
    except CaptureRefused as refusal:
        said.append(str(refusal))


async def long_chains(device: str, clients: int) -> None:
    """One capture after the other of very long chains."""
    for operations in (1000, 5000):
        for bound in (10 * operations, operations // 2):
            async with worker(device, CHAIN.format(name="long", length=operations // 2, most=8, buckets=[4, 8]), bound) as node:
                quiet: list[float] = []
                busy: list[float] = []
                said: list[str] = []
                await beside(node, clients, partial(asyncio.sleep, 0.5), [])
                await beside(node, clients, partial(asyncio.sleep, 2.0), quiet)
                took = await beside(node, clients, partial(capture_one, node, said), busy)
                show(f"a chain of {operations}, at most {bound} nodes: {said[0]} in {took:.1f} s", busy, quiet)


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--graphs", type=int, default=20)
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    asyncio.run(many(options.device, options.graphs, options.clients))
    asyncio.run(long_chains(options.device, options.clients))


if __name__ == "__main__":
    main()
