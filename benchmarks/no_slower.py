"""Is any demo model slower with the cache on than all-eager? Latency of `await worker.infer(...)`, one request after the other.

    python -m benchmarks.no_slower [--device cuda:0] [--requests 2000] [--settle 20] [--json FILE]

First each model gets traffic of mixed sizes in mode auto for a while, so that the policy has captured what it wants. Then rounds in mode
auto and in mode none alternate over the same sequence of requests, so that both meet the same weather. Exit code 1 where the cache costs
more than 2 % at the median or 5 % at the 99th percentile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from pathlib import Path

import torch

from service.config import load
from service.messages import InferRequest
from service.models.loaded import DATATYPES
from service.serving import Node, assemble
from service.tensors import HostTensor

ROUND = 50  # requests of one mode before the other has its turn
P50, P99 = 0.02, 0.05
MODELS = ("mlp", "chain32", "encoder", "decode", "adapters")


def tensors(model: str, rng: random.Random) -> dict[str, HostTensor]:
    """One request of a size as traffic has it: small ones often, large ones now and then."""
    batch = min(rng.choice((1, 1, 2, 3, 4, 6, 8, 13, 16)), 16)
    match model:
        case "encoder":
            found = {"tokens": torch.full((batch, rng.choice((9, 17, 40, 90))), 7)}
        case "decode":
            slots = torch.tensor(rng.sample(range(64), batch))
            found = {"tokens": torch.full((batch,), 7), "slots": slots, "positions": torch.zeros(batch, dtype=torch.int64)}
        case _:
            found = {"x": torch.ones(batch, {"mlp": 256, "chain32": 1024, "adapters": 128}[model])}
    return {
        name: HostTensor(DATATYPES[tensor.dtype], tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, tensor in found.items()
    }


async def timed(node: Node, model: str, inputs: dict[str, HostTensor]) -> tuple[float, bool]:
    """Seconds of one request, and whether it was replayed."""
    started = time.perf_counter()
    reply = await node.worker.infer(InferRequest(model, inputs))
    return time.perf_counter() - started, str(reply.outcome.path) == "replay"


async def measure(node: Node, model: str, requests: int, settle_s: float) -> dict[str, float]:
    """Percentiles of both modes."""
    rng = random.Random(1)
    until = time.monotonic() + settle_s
    while time.monotonic() < until:
        await timed(node, model, tensors(model, rng))
        await asyncio.sleep(0.002)
    taken: dict[str, list[float]] = {"auto": [], "none": []}
    replayed = 0
    for turn in range(requests // ROUND):
        sequence = [tensors(model, rng) for _ in range(ROUND)]
        for mode, times in sorted(taken.items(), reverse=bool(turn % 2)):
            node.admin.set_mode(model, "", {}, mode, None)
            await timed(node, model, sequence[0])  # the switch is not to be measured
            for inputs in sequence:
                seconds, replay = await timed(node, model, inputs)
                times.append(seconds)
                replayed += replay
    node.admin.set_mode(model, "", {}, "auto", None)
    figures = {"replayed": replayed / len(taken["auto"])}
    for mode, times in taken.items():
        times.sort()
        figures[f"{mode}_p50_ms"] = times[len(times) // 2] * 1e3
        figures[f"{mode}_p99_ms"] = times[len(times) * 99 // 100] * 1e3
    figures["p50"] = figures["auto_p50_ms"] / figures["none_p50_ms"] - 1.0
    figures["p99"] = figures["auto_p99_ms"] / figures["none_p99_ms"] - 1.0
    return figures


async def run(device: str, requests: int, settle_s: float, models: list[str]) -> dict[str, dict[str, float]]:
    """All demo models, one after the other, in one worker."""
    config = load(None, [f"worker.device={device}"], demo=True)
    node = assemble(config)
    try:
        for model in config.models:
            await node.admin.load_config(model)
        node.worker.prewarmed()
        return {model: await measure(node, model, requests, settle_s) for model in models}
    finally:
        await node.worker.drain()
        await asyncio.to_thread(node.close)


def main() -> int:
    """Print a line a model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--requests", type=int, default=2000, help="of each mode and model")
    parser.add_argument("--settle", type=float, default=20.0, help="seconds of traffic before measuring")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = asyncio.run(run(options.device, options.requests, options.settle, options.models))
    print(f"{'model':10} {'replayed':>9} {'p50 on':>9} {'off':>9} {'change':>8} {'p99 on':>9} {'off':>9} {'change':>8}   (ms)")
    slower = []
    for model, of in found.items():
        print(
            f"{model:10} {of['replayed']:9.0%} {of['auto_p50_ms']:9.3f} {of['none_p50_ms']:9.3f} {of['p50']:+8.1%}"
            f" {of['auto_p99_ms']:9.3f} {of['none_p99_ms']:9.3f} {of['p99']:+8.1%}"
        )
        if of["p50"] > P50 or of["p99"] > P99:
            slower.append(model)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    print(f"slower with the cache on: {', '.join(slower) or 'none'}")
    return int(bool(slower))


if __name__ == "__main__":
    sys.exit(main())
