"""Convolutions with batch norm in eval mode."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "padded"
ROWS_INDEPENDENT = True
RTOL, ATOL = 1e-3, 1e-4


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        norm = nn.BatchNorm2d(6)
        nn.init.uniform_(norm.running_mean, -0.3, 0.3)  # type: ignore[arg-type]
        nn.init.uniform_(norm.running_var, 0.5, 2.0)  # type: ignore[arg-type]
        self.body = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), norm, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, 3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 2, 8, 8, generator=g)}
