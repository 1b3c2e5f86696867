"""A forward hook of the model's own, whose Python a replay would skip."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

EXPECT = "stateful"
ROWS_INDEPENDENT = False


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.head.register_forward_hook(_tell)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x)
        return y


def _tell(_: nn.Module, __: tuple[Tensor, ...], y: Tensor) -> Tensor:
    sys.stderr.write("")
    return y * 2


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
