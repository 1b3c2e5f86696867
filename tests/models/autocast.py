"""Half precision inside, single precision outside."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "padded"
ROWS_INDEPENDENT = True
RTOL, ATOL = 5e-2, 5e-2


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(24, 24)
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(device_type=x.device.type, dtype=torch.bfloat16):
            h = torch.relu(self.shared(x))
            y: Tensor = self.head(torch.relu(self.shared(h)))
        return y.float()


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 24, generator=g)}
