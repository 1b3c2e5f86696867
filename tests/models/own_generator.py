"""A generator of the model's own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "stateful|nondeterministic|rng"
ROWS_INDEPENDENT = False
STATEFUL = True


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x)
        return y + torch.randn(4, generator=self.generator).to(y.device)


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
