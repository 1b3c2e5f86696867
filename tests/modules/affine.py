"""One linear layer, for reloads and everything else that needs a model with weights that says little."""

import torch
from torch import nn


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Linear(4, 2).eval()


def example_inputs(batch: int, seed: int) -> dict[str, torch.Tensor]:
    return {"input": torch.randn(batch, 4, generator=torch.Generator().manual_seed(seed))}
