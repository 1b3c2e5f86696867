"""Counts its calls in an attribute of a class that is no module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "stateful"
ROWS_INDEPENDENT = False
STATEFUL = True


class Calls:
    number = 0


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        Calls.number += 1
        y: Tensor = self.head(x) * (2 if Calls.number > 60 else 1)
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
