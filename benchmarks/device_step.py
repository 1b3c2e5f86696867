"""What the device thread adds to a replay, and what a capture costs, per model.

    python benchmarks/device_step.py [--device cuda:0] [--large] [--steps 1000] [--json FILE]

raw is the copy in, the launch, the copy out and the wait of one recording, nothing else; replay is `recording.replay(batch)` from the
formed batch to outputs in host memory, measured in turns with it. `--large` adds the decode step in the shape of a 1B model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cachepolicy.buckets import Bucket
from service.backends.base import Batch, Part
from service.backends.cpu import CpuRecording
from service.backends.cuda import CudaRecording
from service.backends.opening import open_backend
from service.lane import LaneThread
from service.models import demo
from service.models.loaded import LoadedModel
from service.models.spec import AxisSpec, InputSpec, ModelSpec, OutputSpec, StateSpec
from service.tensors import Datatype, HostTensor


class AttentionLayer(nn.Module):
    """One layer's attention of a 70B Llama as one of eight tensor-parallel ranks sees it: 8 query heads, one key head, 1024 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.ones(8192, dtype=torch.bfloat16))
        self.qkv = nn.Linear(8192, 1280, bias=False, dtype=torch.bfloat16)
        self.out = nn.Linear(1024, 8192, bias=False, dtype=torch.bfloat16)
        self.register_buffer("cache", torch.randn(2, 1, 1, 1024, 128, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        """`x` BF16 [batch, 8192] → the same shape."""
        query, _, _ = self.qkv(functional.rms_norm(x, (8192,), self.norm)).split((1024, 128, 128), dim=-1)
        keys, values = self.get_buffer("cache").expand(2, len(x), 1, 1024, 128).unbind()
        attended = functional.scaled_dot_product_attention(query.view(len(x), 1, 8, 128), keys, values)
        result: Tensor = x + self.out(attended.reshape(len(x), 1024))
        return result


@dataclass
class Figures:
    """Microseconds per step, milliseconds per part of a capture."""

    model: str
    batch: int
    nodes: int
    raw_us: float
    replay_us: float
    replay_p99_us: float
    added_us: float
    eager_us: float
    times_faster: float
    warm_up_ms: float
    capture_ms: float
    instantiate_ms: float
    first_launch_ms: float
    mib: float


def dense(name: str, module: nn.Module, width: int, datatype: Datatype, device: torch.device) -> LoadedModel:
    """A model from x [batch, width] to y of the same shape."""
    shape = ("batch", width)
    spec = ModelSpec(
        name, "1", (InputSpec("x", datatype, shape),), (OutputSpec("y", datatype, shape),), (AxisSpec("batch", 64, (1, 8, 64)),)
    )
    return LoadedModel(spec, module.to(device).eval().requires_grad_(requires_grad=False), device, name, f"{name}:1@1")


def decoder(name: str, device: torch.device, **shape: object) -> LoadedModel:
    """The demo's decode step; only the next token comes back."""
    module = demo.decode(logits=False, slots=64, scratch=8, **shape).to(device).requires_grad_(requires_grad=False)  # type: ignore[arg-type]
    inputs = tuple(InputSpec(field, Datatype.INT64, ("batch",)) for field in ("tokens", "slots", "positions"))
    state = tuple(StateSpec(buffer, "slots", 8, 64) for buffer in ("keys", "values"))
    outputs = (OutputSpec("next_token", Datatype.INT64, ("batch",)),)
    spec = ModelSpec(name, "1", inputs, outputs, (AxisSpec("batch", 64, (1, 8, 64)),), state=state)
    return LoadedModel(spec, module, device, name, f"{name}:1@1", state={"keys": module.keys, "values": module.values})


def batch_of(model: LoadedModel, rows: int) -> Batch:
    """One request of this many rows."""
    inputs = {}
    for spec in model.spec.inputs:
        shape = (rows, *(int(size) for size in spec.shape[1:]))
        if spec.datatype is Datatype.INT64:
            inputs[spec.name] = HostTensor.of(spec.datatype, np.arange(rows))
        else:
            values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
            bits = (values.view(np.uint32) >> 16).astype(np.uint16) if spec.datatype is Datatype.BF16 else values
            inputs[spec.name] = HostTensor.of(spec.datatype, bits)
    return Batch.of([Part(inputs, {"batch": rows})], "batch")


def in_turns(steps: int, *runs: Callable[[], object]) -> list[list[float]]:
    """Microseconds of each run, taken in turns and in alternating order so that all meet the same weather."""
    taken: list[list[float]] = [[] for _ in runs]
    for turn in range(steps + steps // 10):
        for run, times in list(zip(runs, taken, strict=True))[:: 1 if turn % 2 else -1]:
            started = time.perf_counter()
            run()
            if turn >= steps // 10:
                times.append((time.perf_counter() - started) * 1e6)
    return taken


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    backend = open_backend(options.device)
    device = torch.device(backend.device)
    lane, capturer = LaneThread(backend.lane, "lane"), LaneThread(backend.capturer, "capturer")
    models = [
        (dense("chain32", demo.chain32(), 1024, Datatype.FP32, device), 1),
        (dense("mlp", demo.mlp(), 256, Datatype.FP32, device), 1),
        (dense("attention", AttentionLayer(), 8192, Datatype.BF16, device), 1),
        (decoder("decode", device), 1),
        (decoder("decode", device), 8),
    ]
    if options.large:
        shape = {"layers": 16, "width": 2048, "heads": 32, "kv_heads": 8, "hidden": 8192, "vocabulary": 128256, "dtype": "bfloat16"}
        models += [(large := decoder("decode 1B", device, context=512, **shape), 1), (large, 8), (large, 64)]
    rows = []
    for model, size in models:
        batch = batch_of(model, size)
        recording = capturer.submit(partial(backend.record, model, (), Bucket.of(batch=size))).result()
        assert isinstance(recording, CpuRecording | CudaRecording)
        lane.submit(partial(recording.replay, batch)).result()
        runs = (recording.launch, partial(recording.replay, batch), partial(backend.run_eager, model, (), batch))
        steps = min(options.steps, 200) if size == 64 or "1B" in model.spec.name else options.steps
        raw, replay, eager = lane.submit(partial(in_turns, steps, *runs)).result()
        p50 = statistics.median(replay)
        timings = recording.timings
        rows.append(
            Figures(
                model.spec.name,
                size,
                recording.nodes,
                statistics.median(raw),
                p50,
                sorted(replay)[int(len(replay) * 0.99)],
                p50 - statistics.median(raw),
                statistics.median(eager),
                statistics.median(eager) / p50,
                timings.warm_up * 1e3,
                timings.capture * 1e3,
                timings.instantiate * 1e3,
                timings.first_launch * 1e3,
                (recording.bytes + recording.arena_bytes) / 2**20,
            )
        )
        row = asdict(rows[-1])
        if len(rows) == 1:
            print("  ".join(f"{name:>{max(9, len(name))}}" for name in row))
        print("  ".join(f"{value if isinstance(value, str | int) else f'{value:.1f}':>{max(9, len(name))}}" for name, value in row.items()))
        lane.barrier()
        capturer.submit(recording.close).result()
    if options.json:
        Path(options.json).write_text(
            json.dumps({"environment": asdict(backend.environment()), "figures": [asdict(row) for row in rows]}, indent=1)
        )
    lane.close()
    capturer.close()
    backend.close()


if __name__ == "__main__":
    main()
