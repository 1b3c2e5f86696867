"""A buffer carries something from call to call."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "stateful"
ROWS_INDEPENDENT = False
STATEFUL = True


class Step(nn.Module):
    level: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.register_buffer("level", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x)
        self.level.lerp_(y.mean(dim=0), 0.5)
        return y + self.level


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
