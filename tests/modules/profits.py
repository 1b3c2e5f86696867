"""Models of which a graph is not faster, each for a reason of its own, and one of which it is. x [batch, width] → y [batch, 4]."""

from __future__ import annotations

import torch
from torch import nn


class Heavy(nn.Module):
    """A few large products: hardly a launch to save."""

    def __init__(self, width: int, inner: int, depth: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, 4)
        self.layers = nn.ModuleList(nn.Linear(inner, inner, bias=False) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x)
        for layer in self.layers:
            h = layer(h)
        return torch.tanh(self.down(h))


class Carries(nn.Module):
    """Takes much and looks at little of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :4] * 2


class Adds(nn.Module):
    """Nothing but launches."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.length):
            x = x + 1
        return x[:, :4] * 2


class StopsOften(nn.Module):
    """A value is read on the host after every few operations: many small pieces."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = torch.tanh(x + 1)
            if x.sum().item() > 1e30:
                x = -x
        return x[:, :4]
