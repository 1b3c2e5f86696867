"""Changes itself: every call adds one to what it answers."""

import torch
from torch import Tensor, nn


class Counting(nn.Module):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, 2] → x plus the number of calls so far."""
        self.calls.add_(1)
        return x + self.calls


def make_model() -> nn.Module:
    return Counting().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    return {"x": torch.zeros(batch, 2)}
