"""The largest value of all rows that share a key."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "repeated"
ROWS_INDEPENDENT = False


class Step(nn.Module):
    def forward(self, keys: Tensor, values: Tensor) -> Tensor:
        best = torch.full((5000,), -torch.inf, device=keys.device).scatter_reduce(0, keys, values, "amax")
        return best.gather(0, keys)


def make_model() -> nn.Module:
    return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"keys": torch.randint(1, 5000, (batch,), generator=g), "values": torch.randn(batch, generator=g) + 3}
