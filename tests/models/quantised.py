"""Layers whose activations are quantised on one scale for the whole batch: a row of padding may change it."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

EXPECT = "repeated"
ROWS_INDEPENDENT = False
CPU_ONLY = True


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        step = Step().eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step.layers = torch.ao.quantization.quantize_dynamic(step.layers, {nn.Linear}, dtype=torch.qint8)  # type: ignore[no-untyped-call]
        return step


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
