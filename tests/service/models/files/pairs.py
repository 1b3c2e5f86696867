"""Needs two rows at least, and has a part that was left in training mode."""

import torch
from torch import Tensor, nn

MIN_BATCH = 3


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        """X [batch ≥ 3, 4] → the same shape."""
        if len(x) < MIN_BATCH:
            raise ValueError("too few rows")
        y: Tensor = self.norm(x)
        return y


def make_model() -> nn.Module:
    model = Pairs().eval()
    model.norm.train()
    return model


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    return {"x": torch.randn(batch, 4, generator=torch.Generator().manual_seed(seed))}
