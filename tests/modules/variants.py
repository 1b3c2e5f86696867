"""A model whose `rude` variant looks at a value on the host and therefore can't be recorded; the others can."""

import torch
from torch import nn


class Variants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, tone: str) -> torch.Tensor:
        """X [batch, 8] → [batch, 4]."""
        y: torch.Tensor = self.head(x)
        if tone == "loud":
            y = y * 2
        if tone == "rude" and y.mean().item() > 0:
            y = -y
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return Variants().eval()


def example_inputs(batch: int, seed: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 8, generator=torch.Generator().manual_seed(seed))}
