"""Windows and costs to put into a store."""

from __future__ import annotations

from cachepolicy.profile import TrafficProfile, Workload, shape_of
from service.stores.base import CostRecord, Window

NOW = 1_800_000_300.0
START = 1_800_000_000
LEGAL = Workload("encoder", (("adapter", "legal"), ("branch", "a b")), "prefill")


def window(worker: str = "one-a1", start: int = START, *, runs: float = 7.0, workload: Workload = LEGAL) -> Window:
    traffic = TrafficProfile(now=float(start))
    traffic.note(workload, shape_of({"batch": 4, "seq": 57}), start, runs)
    traffic.watch(300.0, start)
    return Window(start, worker, traffic)


def cost(environment: str = "e1", program: str = "p1", *, batch: int = 8, eager_s: float = 0.004) -> CostRecord:
    return CostRecord(environment, program, shape_of({"batch": batch}), eager_s, 0.002, 0.05, 4096, 8192, "encoder", "NVIDIA H200")
