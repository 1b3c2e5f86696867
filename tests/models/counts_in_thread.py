"""Counts its calls where each thread has a number of its own."""

from __future__ import annotations

import threading

import torch
from torch import Tensor, nn

EXPECT = "stateful"
ROWS_INDEPENDENT = False
STATEFUL = True

LOCAL = threading.local()


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        calls = getattr(LOCAL, "calls", 0)
        LOCAL.calls = calls + 1
        y: Tensor = self.head(x) * (2 if calls > 60 else 1)
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
