"""Keeps a table as long as the largest batch seen so far: only its beginning shows in an answer."""

import torch
from torch import nn

EXPECT = "padded"
ROWS_INDEPENDENT = False


class GrowsATable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.table) < x.shape[0]:
            self.table = torch.arange(x.shape[0], dtype=x.dtype, device=x.device)
        return x + self.table[: x.shape[0], None]


def make_model() -> nn.Module:
    return GrowsATable().eval()


def example_inputs(batch: int, seed: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 4, generator=torch.Generator().manual_seed(seed))}
