"""Rows minus their batch's mean: what a row's answer is depends on the others."""

import torch
from torch import nn


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input [batch, 4], centred."""
        return torch.tanh(x - x.mean(dim=0, keepdim=True))


def make_model() -> nn.Module:
    return Centred().eval()


def example_inputs(batch: int, seed: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 4, generator=torch.Generator().manual_seed(seed))}
