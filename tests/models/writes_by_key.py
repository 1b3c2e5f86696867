"""Rows write to a table by a key and read it back: two of one key get the answer of whoever wrote last."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "repeated"
ROWS_INDEPENDENT = False
CPU_ONLY = True  # which of two writes is the last one is not settled on a GPU


class Step(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        table = torch.zeros(1000, device=x.device)
        table[x[:, 0]] = x[:, 1].float()
        return table[x[:, 0]]


def make_model() -> nn.Module:
    return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randint(0, 1000, (batch, 3), generator=g)}
