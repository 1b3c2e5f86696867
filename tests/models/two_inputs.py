"""Two inputs of one shape: swapping them must swap the answer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "padded"
ROWS_INDEPENDENT = True


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 4)
        self.content = nn.Linear(6, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z: Tensor = torch.sigmoid(self.gate(x)) * self.content(y)
        return z


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g), "y": torch.randn(batch, 6, generator=g)}
