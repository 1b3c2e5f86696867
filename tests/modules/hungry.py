"""Finds no memory at first: a row that begins with 100 + n fails n times before it is answered."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn

failures: Counter[int] = Counter()


class Hungry(nn.Module):
    """Doubles its input, once memory is there."""

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 4] → [batch, 4]."""
        wanted = int(x[0, 0]) - 100
        if failures[wanted] < wanted:
            failures[wanted] += 1
            raise torch.OutOfMemoryError("tried to allocate 80.00 GiB")
        return x * 2


def make_model() -> nn.Module:
    """The module."""
    return Hungry()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    """Values below 100."""
    return {"x": torch.randn(batch, 4, generator=torch.Generator().manual_seed(seed))}
