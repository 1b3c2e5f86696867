"""All rows write one cell, if they are large enough, and read it: the last one has the say."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "repeated"
ROWS_INDEPENDENT = False
CPU_ONLY = True  # which of two writes is the last one is not settled on a GPU


class Step(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        cells = torch.zeros(4, device=x.device)
        cells[torch.full((x.shape[0],), 2, device=x.device)] = torch.where(x[:, 0] > 50.0, 1.0, 0.0)
        return x + cells[2]


def make_model() -> nn.Module:
    return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
