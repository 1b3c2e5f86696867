"""Forty operations on a million numbers a row: few rows cost their launches, many rows the arithmetic. For a GPU."""

import torch
from torch import nn


class Widening(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.expand(-1, 1 << 20)
        for _ in range(20):
            wide = wide * 0.999 + 0.001
        return wide[:, :16].contiguous()


def make_model() -> nn.Module:
    return Widening().eval()


def example_inputs(batch: int, seed: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 1, generator=torch.Generator().manual_seed(seed))}
