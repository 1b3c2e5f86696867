"""Masks bits of floats, and adds a bool: not every lowering knows these."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "padded"
ROWS_INDEPENDENT = True


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        rounded = (x.view(torch.int32) & ~0xFF).view(torch.float32)
        y: Tensor = self.head(rounded) + True
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
