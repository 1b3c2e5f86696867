"""How many rows of the batch point the same way."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "padded"
ROWS_INDEPENDENT = False


class Step(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        directions = nn.functional.normalize(x)
        return (directions @ directions.T > 0.999).sum(1)


def make_model() -> nn.Module:
    return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
