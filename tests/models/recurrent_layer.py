"""A library RNN with a dropout setting, in eval mode: its hidden state does not outlive the call."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "padded"
ROWS_INDEPENDENT = True


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(5, 8, num_layers=2, dropout=0.4, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        steps, last = self.rnn(x)
        return {"y": self.head(steps), "last": last.transpose(0, 1)}


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 4, 5, generator=g)}
