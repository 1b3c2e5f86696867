"""Inputs and outputs of several datatypes, as a dict, one of them without the batch, and one whose size follows the values."""

import torch
from torch import Tensor, nn


class Many(nn.Module):
    def forward(self, x: Tensor, keep: Tensor, ids: Tensor) -> dict[str, Tensor]:
        """X BF16 [batch, 6], keep BOOL [batch, 6], ids INT32 [batch]."""
        return {
            "total": x.sum(dim=0),
            "kept": keep & (x > 0),
            "trimmed": x[:, : int(ids.max())],
            "twice": torch.cat((ids, ids)),
            "same": ids.to(torch.int64),
        }


def make_model() -> nn.Module:
    return Many().eval()


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(batch, 6, generator=g).to(torch.bfloat16),
        "keep": torch.rand(batch, 6, generator=g) > 0.5,
        "ids": torch.full((batch,), 1 + seed, dtype=torch.int32),
    }
