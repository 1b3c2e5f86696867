"""Part of the work is numpy's."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

EXPECT = "sync|data_dependent|capture_error"
ROWS_INDEPENDENT = True


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(torch.from_numpy(np.flip(np.sort(x.cpu().numpy(), axis=1), axis=1).copy()).to(x.device))
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
