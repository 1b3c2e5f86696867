"""Scales by the largest batch seen so far: its own history shows in its answers, though none of two equal requests in a row differs."""

import torch
from torch import nn

EXPECT = "stateful"
STATEFUL = True


class LargestSoFar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.most = max(self.most, x.shape[0])
        return x / self.most


def make_model() -> nn.Module:
    return LargestSoFar().eval()


def example_inputs(batch: int, seed: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 4, generator=torch.Generator().manual_seed(seed))}
