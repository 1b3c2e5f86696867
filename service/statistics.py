"""Counters of one model, as ModelStatistics of the inference protocol wants them. Written on the event loop only."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import time

from service.messages import ModelStats


@dataclass(slots=True)
class ModelCounters:
    """Totals since load; durations in nanoseconds."""

    success_count: int = 0
    success_ns: int = 0
    fail_count: int = 0
    fail_ns: int = 0
    queue_ns: int = 0
    compute_ns: int = 0
    rows: int = 0
    batches: int = 0
    last_ms: int = 0
    by_batch_size: dict[int, list[int]] = field(default_factory=dict)  # size → [count, ns]

    def batch(self, rows: int, seconds: float) -> None:
        """One batch ran."""
        self.batches += 1
        entry = self.by_batch_size.setdefault(rows, [0, 0])
        entry[0] += 1
        entry[1] += int(seconds * 1e9)

    def success(self, rows: int, total_s: float, queue_s: float, compute_s: float) -> None:
        """One request was answered."""
        self.success_count += 1
        self.rows += rows
        self.success_ns += int(total_s * 1e9)
        self.queue_ns += int(queue_s * 1e9)
        self.compute_ns += int(compute_s * 1e9)
        self.last_ms = int(time() * 1000)

    def failure(self, total_s: float) -> None:
        """One request failed."""
        self.fail_count += 1
        self.fail_ns += int(total_s * 1e9)

    def snapshot(self, model: str, version: str) -> ModelStats:
        """The counters as plain values."""
        return ModelStats(
            model=model,
            version=version,
            last_inference_ms=self.last_ms,
            inference_count=self.rows,
            execution_count=self.batches,
            success_count=self.success_count,
            success_ns=self.success_ns,
            fail_count=self.fail_count,
            fail_ns=self.fail_ns,
            queue_ns=self.queue_ns,
            compute_input_ns=0,
            compute_infer_ns=self.compute_ns,
            compute_output_ns=0,
            batch_sizes=tuple((size, count, ns) for size, (count, ns) in sorted(self.by_batch_size.items())),
        )
