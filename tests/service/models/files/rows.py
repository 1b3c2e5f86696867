"""A linear layer on rows: nothing about it is special."""

import torch
from torch import nn


class Rows(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """X [batch, width] → [batch, 3]."""
        y: torch.Tensor = self.head(x)
        return y


def make_model(width: int = 4) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Rows(width).eval()


def example_inputs(batch: int, seed: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 4, generator=torch.Generator().manual_seed(seed))}
