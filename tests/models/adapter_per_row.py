"""Each row names its own low-rank adapter."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "padded"
ROWS_INDEPENDENT = True


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 6)
        self.down = nn.Parameter(torch.randn(3, 6, 2))
        self.up = nn.Parameter(torch.randn(3, 2, 6))

    def forward(self, x: Tensor, adapter: Tensor) -> Tensor:
        low = torch.bmm(x[:, None], self.down[adapter])
        y: Tensor = self.base(x) + torch.bmm(low, self.up[adapter])[:, 0]
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g), "adapter": torch.randint(0, 3, (batch,), generator=g)}
