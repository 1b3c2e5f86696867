"""Work that grows with the rows, and little else: padding costs more than a graph saves."""

import torch
from torch import nn


class Bulky(nn.Module):
    weight: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(256, 256, generator=torch.Generator().manual_seed(5)) / 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.repeat_interleave(8, dim=0).repeat(1, 64)
        for _ in range(4):
            wide = torch.tanh(wide @ self.weight)
        return wide.view(len(x), 8, 256).mean(dim=1)


def make_model() -> nn.Module:
    return Bulky().eval()


def example_inputs(batch: int, seed: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 4, generator=torch.Generator().manual_seed(seed))}
