"""A mask, places and a flag per row decide; a row without any true mask is no number, as padding rows are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "padded"
ROWS_INDEPENDENT = True


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(9, 6)
        self.weigh = nn.Linear(6, 1)

    def forward(self, x: Tensor, keep: Tensor, place: Tensor, late: Tensor) -> Tensor:
        h = x + self.places(place)
        weight = self.weigh(h).squeeze(-1) + torch.arange(h.shape[1], device=h.device) * late.to(h.dtype)[:, None]
        weight = weight.masked_fill(~keep, float("-inf")).softmax(dim=1)
        y: Tensor = (weight[:, :, None] * h).sum(dim=1)
        return y


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Step().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    keep = torch.rand(batch, 5, generator=g) > 0.5
    keep[:, 2] = True
    place = torch.randint(0, 9, (batch, 5), generator=g)
    return {"x": torch.randn(batch, 5, 6, generator=g), "keep": keep, "place": place, "late": torch.randint(0, 2, (batch,), generator=g)}
