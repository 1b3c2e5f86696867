"""A random number of Python's, drawn in each call."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

EXPECT = "nondeterministic"
ROWS_INDEPENDENT = False
DETERMINISTIC = False


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x) * random.uniform(0.9, 1.1)
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
