"""A lookup in a table of 100 rows: an index beyond it raises on the CPU."""

import torch
from torch import nn


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens [batch, 1] → [batch, 1, 4]."""
        out: torch.Tensor = self.table(tokens)
        return out


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return Table().eval()


def example_inputs(batch: int, seed: int) -> dict[str, torch.Tensor]:
    return {"tokens": torch.randint(0, 100, (batch, 1), generator=torch.Generator().manual_seed(seed))}
