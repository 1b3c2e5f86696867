"""A module that hangs in a cycle: only the collector frees it."""

import torch
from torch import nn


class Cyclic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.owner = [self]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x))


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return Cyclic().eval()


def example_inputs(batch: int, seed: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 4, generator=torch.Generator().manual_seed(seed))}
