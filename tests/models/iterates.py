"""Steps through an iterator that changes after many calls."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

EXPECT = "stateful"
ROWS_INDEPENDENT = False
STATEFUL = True


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.factors = itertools.cycle([1.0] * 60 + [2.0])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x) * next(self.factors)
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
