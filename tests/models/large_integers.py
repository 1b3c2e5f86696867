"""Integers that no float holds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "padded"
ROWS_INDEPENDENT = True


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 3)

    def forward(self, n: Tensor) -> dict[str, Tensor]:
        return {"next": n + 1, "row": self.table(torch.remainder(n, 11)).sum(dim=1), "odd": torch.remainder(n, 2) == 1}


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"n": torch.randint(2**53, 2**54, (batch, 4), generator=g)}
