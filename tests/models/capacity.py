"""Each of two experts takes at most half of the batch, first come first served."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECT = "exact"
ROWS_INDEPENDENT = False


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.route = nn.Linear(6, 2)
        self.experts = nn.Parameter(torch.randn(2, 6, 6))

    def forward(self, x: Tensor) -> Tensor:
        room = -(-x.shape[0] // 2)
        chosen = nn.functional.one_hot(self.route(x).argmax(dim=1), 2)
        served = (chosen.cumsum(dim=0) * chosen).sum(dim=1) <= room
        y = torch.einsum("bi,eij,be->bj", x, self.experts, chosen.to(x.dtype))
        return torch.where(served[:, None], y, x)


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = Step().eval()
    with torch.no_grad():
        model.route.bias.copy_(torch.tensor([0.0, 4.0]))
    return model


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(batch, 6, generator=g)}
