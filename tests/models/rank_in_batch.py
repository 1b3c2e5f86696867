"""How many rows have a smaller first value."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "exact"
ROWS_INDEPENDENT = False


class Step(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.searchsorted(x[:, 0].sort().values, x[:, 0].contiguous())


def make_model() -> nn.Module:
    return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
