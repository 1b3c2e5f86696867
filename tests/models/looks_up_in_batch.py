"""Whether a row's first token is the second one of any row."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "repeated"
ROWS_INDEPENDENT = False


class Step(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return torch.isin(tokens[:, 0], tokens[:, 1])


def make_model() -> nn.Module:
    return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"tokens": torch.randint(1, 20_000, (batch, 4), generator=g)}
