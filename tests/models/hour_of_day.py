"""Reads the clock, whose reading seldom makes a difference."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

EXPECT = "nondeterministic"
ROWS_INDEPENDENT = False


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x) + time.time() // 3600 % 24
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
