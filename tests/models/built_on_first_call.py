"""A layer and a table are built on the first call, always the same ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "padded"
ROWS_INDEPENDENT = True


class Step(nn.Module):
    ramp: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head: nn.Linear | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.head is None:
            self.head = nn.Linear(x.shape[1], 3, device=x.device)
            with torch.no_grad():
                self.head.weight.copy_(torch.linspace(-1, 1, 3 * x.shape[1]).view(3, -1))
                self.head.bias.zero_()
            self.register_buffer("ramp", torch.linspace(0, 1, x.shape[1], device=x.device))
        y: Tensor = self.head(x * self.ramp)
        return y


def make_model() -> nn.Module:
    return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
