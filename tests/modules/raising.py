"""A step that raises what the input names: exceptions that are none of Exception, and one that can't say what it is."""

import asyncio

import torch
from torch import nn


class Mute(Exception):
    """Its text raises."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


ERRORS = (SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, BaseException, Mute)


class Raising(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input [batch, 4] plus one; at x[0, 0] = k ≥ 1 the error number k - 1 is raised."""
        number = int(x[0, 0].item())
        if number >= 1:
            raise ERRORS[number - 1]
        return x + 1


class Leaving(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input [batch, 4] plus one; leaves the program in a step of four rows, which no trial run at load has."""
        if x.shape[0] == 4:
            raise SystemExit(3)
        return x + 1


def make_model(kind: str) -> nn.Module:
    """`raising`, `leaving`; any other cancels the load."""
    if kind not in ("raising", "leaving"):
        raise asyncio.CancelledError("in the factory")
    return (Raising() if kind == "raising" else Leaving()).eval()


def example_inputs(batch: int, seed: int) -> dict[str, torch.Tensor]:
    return {"x": -torch.rand(batch, 4, generator=torch.Generator().manual_seed(seed))}
