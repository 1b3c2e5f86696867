"""Library encoder layers over tokens, with a key mask."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "padded"
ROWS_INDEPENDENT = True


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        h = self.table(tokens)
        mask = torch.zeros_like(hidden, dtype=h.dtype).masked_fill(hidden, float("-inf"))
        h = self.layer(h, src_key_padding_mask=mask)
        y: Tensor = self.head(h[:, 0])
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    hidden = torch.rand(batch, 7, generator=g) > 0.6
    hidden[:, 0] = False
    return {"tokens": torch.randint(0, 40, (batch, 7), generator=g), "hidden": hidden}
