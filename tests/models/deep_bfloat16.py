"""Many residual blocks in bfloat16: other kernels for other sizes differ in the last bits, and depth lets that grow."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "padded"
ROWS_INDEPENDENT = True
RTOL, ATOL = 5e-2, 5e-2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up = nn.Linear(32, 96)
        self.down = nn.Linear(96, 32)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(*(Block() for _ in range(20))).to(torch.bfloat16).eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"input": torch.randn(batch, 32, generator=g).to(torch.bfloat16)}
