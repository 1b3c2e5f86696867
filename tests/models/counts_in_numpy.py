"""Counts its calls in a number of numpy's."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

EXPECT = "stateful"
ROWS_INDEPENDENT = False
STATEFUL = True


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.calls = np.int64(0)

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + np.int64(1)
        y: Tensor = self.head(x) * (2 if self.calls > 60 else 1)
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
