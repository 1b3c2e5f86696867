"""A plain class, whose method counts in a global."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "stateful"
ROWS_INDEPENDENT = False
STATEFUL = True

CALLS = [0]


class Helper:
    def scaled(self, y: Tensor) -> Tensor:
        CALLS[0] += 1
        return y * (2 if CALLS[0] > 60 else 1)


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.helper = Helper()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.helper.scaled(self.head(x))
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
