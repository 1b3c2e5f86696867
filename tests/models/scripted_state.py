"""TorchScript that counts its calls in an attribute, which Python does not hold."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "stateful"
ROWS_INDEPENDENT = False
STATEFUL = True


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls: int = 0

    def forward(self, x: Tensor) -> float:
        self.calls += 1
        return 2.0 if self.calls > 60 else 1.0


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.counter = torch.jit.script(Counter())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x) * self.counter(x)
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
