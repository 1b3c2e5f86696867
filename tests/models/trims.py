"""Cuts the sequence to the longest length in the batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "sync|data_dependent|output_shape|capture_error"
ROWS_INDEPENDENT = False


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        y: Tensor = self.head(x[:, : int(length.max())])
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 5, 3, generator=g), "length": torch.randint(1, 6, (batch,), generator=g)}
