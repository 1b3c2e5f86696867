"""A function of another Python module counts its calls there."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor, nn

EXPECT = "stateful"
ROWS_INDEPENDENT = False
STATEFUL = True

elsewhere = ModuleType("elsewhere")
exec("calls = [0]\n\ndef factor():\n    calls[0] += 1\n    return 2 if calls[0] > 60 else 1\n", elsewhere.__dict__)  # noqa: S102


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x) * elsewhere.factor()
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
