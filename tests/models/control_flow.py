"""Leaves a branch to torch.cond, which reads its condition on the host."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "sync"
ROWS_INDEPENDENT = False


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.cond(x.sum() > 0, torch.sin, torch.cos, (self.head(x),))
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
