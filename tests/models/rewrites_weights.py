"""Masks its own weights in place; only the first call changes them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "parameter_mutation"
ROWS_INDEPENDENT = True


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data.mul_(self.weight.data > 0)
        return nn.functional.linear(x, self.weight)


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
