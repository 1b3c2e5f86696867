"""What a proof costs: its share of a capture, its memory, and what requests feel of it while it runs.

    python benchmarks/verification.py [--device cuda:0] [--seconds 5] [--clients 8]

Clients ask one model in closed loops. In every other phase the graphs of another model are dropped and captured anew all the time, so
that a proof is nearly always running.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
from pathlib import Path
from time import monotonic, perf_counter

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from service import garbage
from service.config import load
from service.messages import InferRequest
from service.serving import Node, assemble
from service.tensors import Datatype, HostTensor

CONFIGURATION = """
worker: {listen: "127.0.0.1:0"}
cache: {budget: 2GiB, capture: {background: false}, audit: 0%}
models:
  - name: asked
    factory: service.models.demo:chain32
    inputs: {x: {datatype: FP32, shape: [batch, 1024]}}
    outputs: {y: {datatype: FP32, shape: [batch, 1024]}}
    axes: {batch: {max: 8, buckets: [1, 2, 4, 8]}}
    rows: independent
  - name: proven
    factory: service.models.demo:mlp
    inputs: {x: {datatype: FP32, shape: [batch, 256]}}
    outputs: {y: {datatype: FP32, shape: [batch, 256]}}
    axes: {batch: {max: 16, buckets: [4, 16]}}
    rows: independent
"""
ROUNDS = 3
PHASES = ("warm_up", "capture", "instantiate", "first_launch", "verify")


async def ask(node: Node, seed: int, until: float, latencies: list[float]) -> None:
    """One client in a closed loop."""
    rng = np.random.default_rng(seed)
    while monotonic() < until:
        rows = int(rng.integers(1, 5))
        x = HostTensor.of(Datatype.FP32, rng.standard_normal((rows, 1024)).astype(np.float32))
        started = perf_counter()
        await node.worker.infer(InferRequest("asked", {"x": x}))
        latencies.append(perf_counter() - started)


async def prove(node: Node, until: float) -> int:
    """Capture anew until the time is up; returns how often."""
    captures = 0
    while monotonic() < until:
        await node.admin.evict("proven", "", None, {})
        for batch in (16, 4):
            await node.admin.warm("proven", "", {"batch": batch}, {}, force=True)
            captures += 1
    return captures


async def measure(device: str, seconds: float, clients: int) -> None:
    """Alternate quiet and busy phases, and print."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "worker.yaml"
        path.write_text(CONFIGURATION)
        config = load(path, [f"worker.device={device}"])
    node = assemble(config)
    for model in config.models:
        await node.admin.load_config(model)
    garbage.keep()
    node.worker.prewarmed()
    for batch in (8, 4, 2, 1):
        await node.admin.warm("asked", "", {"batch": batch}, {}, force=True)
    await prove(node, monotonic() + 0.1)
    memory = _memory(device)
    quiet: list[float] = []
    busy: list[float] = []
    captures = 0
    before = _capture_seconds(node)
    for _ in range(ROUNDS):
        for latencies in (quiet, busy):
            until = monotonic() + seconds / ROUNDS
            asking = [ask(node, seed, until, latencies) for seed in range(clients)]
            if latencies is busy:
                captures += (await asyncio.gather(prove(node, until), *asking))[0] or 0
            else:
                await asyncio.gather(*asking)
    spent = {phase: total - before[phase] for phase, total in _capture_seconds(node).items()}
    for name, latencies in (("without", quiet), ("with", busy)):
        p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
        print(f"{name:8} a proof: {len(latencies):7} requests, p50 {p50:.3f} ms, p99 {p99:.3f} ms")
    print(f"p99 ratio {np.percentile(busy, 99) / np.percentile(quiet, 99):.2f} over {captures} captures")
    total = sum(spent.values())
    print(", ".join(f"{phase} {seconds / captures * 1e3:.2f} ms" for phase, seconds in spent.items()), "for each capture beside traffic")
    print(f"share of verification: {spent['verify'] / total:.0%}; memory grew by {(_memory(device) - memory) / 2**20:.1f} MiB")
    node.close()


def _capture_seconds(node: Node) -> dict[str, float]:
    return {phase: node.worker.metrics.capture_seconds(phase) for phase in PHASES}


def _memory(device: str) -> int:
    if device != "cpu":
        return torch.cuda.max_memory_reserved()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=5.0, help="of quiet, and as many of busy phases")
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    asyncio.run(measure(options.device, options.seconds, options.clients))


if __name__ == "__main__":
    main()
