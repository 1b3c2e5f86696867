"""Ranks candidate items for a query. See README.md beside this file."""

import torch
from torch import Tensor, nn


class Ranker(nn.Module):
    """Lets the items of one request compare themselves with each other, and scores each against the query."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.compare = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.score = nn.Bilinear(width, width, 1)

    def forward(self, query: Tensor, candidates: Tensor, real: Tensor) -> dict[str, Tensor]:
        """`query` [batch, width], `candidates` [batch, items, width], `real` BOOL [batch, items] → `scores` [batch, items]."""
        # A row of padding has no real item at all; letting it see itself keeps its softmax defined.
        hidden = ~(real | ~real.any(dim=1, keepdim=True))
        compared, _ = self.compare(candidates, candidates, candidates, key_padding_mask=hidden, need_weights=False)
        items = self.norm(candidates + compared)
        wanted = self.query(query).unsqueeze(1).expand_as(items).contiguous()
        return {"scores": self.score(wanted, items).squeeze(-1)}


def make_model(width: int = 64, seed: int = 7) -> nn.Module:
    """The model, the same in every process; a real one would get its weights from a file (`weights:` in the configuration)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Ranker(width).eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    """Realistic requests; the mask is the worker's and left out."""
    g = torch.Generator().manual_seed(seed)
    return {"query": torch.randn(batch, 64, generator=g), "candidates": torch.randn(batch, 12, 64, generator=g)}
