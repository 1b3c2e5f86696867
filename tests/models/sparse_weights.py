"""A sparse weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "padded"
ROWS_INDEPENDENT = True
CPU_ONLY = True


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.mixing: Tensor
        self.register_buffer("mixing", torch.eye(6).roll(1, 0).to_sparse_csr())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head((self.mixing @ x.t()).t())
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
