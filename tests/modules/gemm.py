"""Sixteen large matrix products on 4096 rows in bfloat16: all arithmetic, nothing for a graph to save. For a GPU."""

import torch
from torch import nn


class Gemm(nn.Module):
    up: torch.Tensor
    down: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(6)
        self.register_buffer("up", (torch.randn(8192, 8192, generator=g) / 90).bfloat16())
        self.register_buffer("down", (torch.randn(8192, 8192, generator=g) / 90).bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.bfloat16().repeat_interleave(4096, dim=0).expand(-1, 8192)
        for _ in range(8):
            wide = wide @ self.up @ self.down
        return wide.view(len(x), 4096, 8192)[:, 0, :16].float()


def make_model() -> nn.Module:
    return Gemm().eval()


def example_inputs(batch: int, seed: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 1, generator=torch.Generator().manual_seed(seed))}
