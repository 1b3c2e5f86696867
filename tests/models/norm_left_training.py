"""One norm inside was left in training mode."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "training_mode"
ROWS_INDEPENDENT = False
MIN_BATCH = 2


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(x))
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = Step().eval()
    model.norm.train()
    return model


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
