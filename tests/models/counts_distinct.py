"""Divides by the number of distinct tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "sync|data_dependent"
ROWS_INDEPENDENT = False


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.table(tokens).sum(dim=1) / torch.unique(tokens).numel()
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"tokens": torch.randint(0, 20, (batch, 6), generator=g)}
