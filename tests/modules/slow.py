"""A step that takes a while and counts its runs, for what happens to requests that wait. It can't be recorded: it looks at a value."""

import time

import torch
from torch import nn


class Slow(nn.Module):
    RUNS = 0
    SECONDS = 0.2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input [batch, 4] plus one; raises for negative values."""
        if x.shape[0] == 1 and x.min().item() == -7.0:
            raise ValueError("minus seven is not welcome")
        if x.max().item() > 0:  # trial runs at load are of zeros or small values
            type(self).RUNS += 1
            time.sleep(self.SECONDS)
        return x + 1


def make_model() -> nn.Module:
    return Slow().eval()


def example_inputs(batch: int, seed: int) -> dict[str, torch.Tensor]:
    return {"x": -torch.rand(batch, 4, generator=torch.Generator().manual_seed(seed))}
