"""Batch norm that keeps no statistics uses the batch's own, in eval mode, too. One row alone raises."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "exact"
ROWS_INDEPENDENT = False
MIN_BATCH = 2


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.head(x)))


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
