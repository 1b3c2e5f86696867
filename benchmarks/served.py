"""Replay against eager through the same worker in one run: execution on the lane, and `await worker.infer(...)` as a whole.

    python benchmarks/served.py [--device cuda:0] [--large] [--steps 300] [--json FILE]

Modes alternate in rounds, so that both meet the same weather. `--large` takes the decode step in the shape of a 1B model (bfloat16).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from service.config import load
from service.messages import GraphMode, InferRequest
from service.models.loaded import DATATYPES
from service.serving import Node, assemble
from service.tensors import HostTensor

LARGE = (
    "{layers: 16, width: 2048, heads: 32, kv_heads: 8, hidden: 8192, vocabulary: 128256, dtype: bfloat16,"
    " context: 512, slots: 64, scratch: 8}"
)
SMALL = "{slots: 64, scratch: 8, context: 256}"
ROUNDS = 6


def configuration(*, large: bool) -> str:
    """Models by one axis each, so that a request's shape is its batch."""
    width, vocabulary = (512, 128256) if large else (256, 4096)
    return f"""
worker: {{listen: "127.0.0.1:0"}}
cache: {{budget: 2GiB, capture: {{background: false}}}}
models:
  - name: chain32
    factory: service.models.demo:chain32
    inputs: {{x: {{datatype: FP32, shape: [batch, 1024]}}}}
    outputs: {{y: {{datatype: FP32, shape: [batch, 1024]}}}}
    axes: {{batch: {{max: 8, buckets: [1, 8]}}}}
    rows: independent
  - name: mlp
    factory: service.models.demo:mlp
    inputs: {{x: {{datatype: FP32, shape: [batch, 256]}}}}
    outputs: {{y: {{datatype: FP32, shape: [batch, 256]}}}}
    axes: {{batch: {{max: 8, buckets: [1, 8]}}}}
    rows: independent
  - name: decode
    factory: service.models.demo:decode
    args: {LARGE if large else SMALL}
    inputs:
      tokens: {{datatype: INT64, shape: [batch], range: [0, {vocabulary - 1}]}}
      slots: {{datatype: INT64, shape: [batch]}}
      positions: {{datatype: INT64, shape: [batch], range: [0, {width - 1}]}}
    outputs:
      next_token: {{datatype: INT64, shape: [batch]}}
      logits: {{datatype: {"BF16" if large else "FP32"}, shape: [batch, {vocabulary}]}}
    axes: {{batch: {{max: 64, buckets: [1, 8, 64]}}}}
    rows: independent
    state: [{{buffer: keys, index_input: slots, scratch: 8}}, {{buffer: values, index_input: slots, scratch: 8}}]
    phase: decode
"""


def tensors(model: str, batch: int) -> dict[str, HostTensor]:
    """Random values for one request."""
    if model == "decode":
        found = {
            "tokens": torch.randint(0, 4096, (batch,)),
            "slots": torch.randperm(64)[:batch],
            "positions": torch.randint(0, 256, (batch,)),
        }
    else:
        found = {"x": torch.randn(batch, 1024 if model == "chain32" else 256)}
    return {name: HostTensor(DATATYPES[t.dtype], tuple(t.shape), t.numpy().tobytes()) for name, t in found.items()}


async def measure(node: Node, model: str, batch: int, steps: int) -> dict[str, object]:
    """Medians of both modes, in microseconds."""
    await node.admin.warm(model, "", {"batch": batch}, {}, force=True)
    samples: dict[str, list[tuple[float, float]]] = {"none": [], "auto": []}
    for _ in range(ROUNDS):
        for mode in (GraphMode.NONE, GraphMode.AUTO):
            node.admin.set_mode(model, "", {}, mode, None)
            outputs = ("next_token",) if model == "decode" else ()
            for step in range(steps // ROUNDS + 3):
                request = InferRequest(model, tensors(model, batch), outputs=outputs)
                started = time.perf_counter()
                reply = await node.worker.infer(request)
                if step >= 3:
                    samples[mode].append((reply.outcome.execute_s, time.perf_counter() - started))
    execute, whole = ({m: statistics.median(s[i] for s in samples[m]) * 1e6 for m in samples} for i in (0, 1))
    return {
        "model": model,
        "batch": batch,
        "execute_eager_us": round(execute["none"], 1),
        "execute_replay_us": round(execute["auto"], 1),
        "execute_ratio": round(execute["none"] / execute["auto"], 2),
        "infer_eager_us": round(whole["none"], 1),
        "infer_replay_us": round(whole["auto"], 1),
        "infer_ratio": round(whole["none"] / whole["auto"], 2),
    }


async def run(device: str, *, large: bool, steps: int) -> list[dict[str, object]]:
    """All models on one worker."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "worker.yaml"
        path.write_text(configuration(large=large))
        config = load(path, [f"worker.device={device}"])
        node = assemble(config)
        try:
            for model in config.models:
                await node.admin.load_config(model)
            cases = [("chain32", 1), ("chain32", 8), ("mlp", 1), ("mlp", 8), ("decode", 1), ("decode", 8), ("decode", 64)]
            return [await measure(node, model, batch, steps) for model, batch in cases]
        finally:
            node.close()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = asyncio.run(run(options.device, large=options.large, steps=options.steps))
    print(
        f"{'model':9} {'batch':>5} {'execute µs: eager':>18} {'replay':>9} {'ratio':>6} {'infer µs: eager':>17} {'replay':>9} {'ratio':>6}"
    )
    for r in rows:
        print(
            f"{r['model']:9} {r['batch']:>5} {r['execute_eager_us']:>18} {r['execute_replay_us']:>9} {r['execute_ratio']:>6}"
            f" {r['infer_eager_us']:>17} {r['infer_replay_us']:>9} {r['infer_ratio']:>6}"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
