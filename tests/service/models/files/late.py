"""Builds its layer in its first run, from the width it sees."""

import torch
from torch import Tensor, nn


class Late(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head: nn.Linear | None = None
        self.norm = nn.LazyBatchNorm1d()

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, 5] → [batch, 2]."""
        if self.head is None:
            self.head = nn.Linear(x.shape[1], 2)
            self.head.weight = nn.Parameter(torch.ones(2, x.shape[1]))
        y: Tensor = self.head(self.norm(x))
        return y


def make_model() -> nn.Module:
    return Late().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    return {"x": torch.randn(batch, 5, generator=torch.Generator().manual_seed(seed))}
