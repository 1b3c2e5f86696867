"""Wrong in whichever way its argument says."""

import torch
from torch import Tensor, nn


class Broken(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> object:
        """X [batch, 2] → something that can't be served."""
        if self.how == "raises":
            raise RuntimeError("two\nlines")
        if self.how == "text":
            return "text"
        if self.how == "list of text":
            return ["text"]
        return {"y": x.to(torch.complex64)}


def make_model(how: str) -> object:
    if how == "factory":
        raise KeyError("no such thing")
    if how == "exit":
        raise SystemExit(3)
    return Broken(how).eval() if how != "no module" else how


def example_inputs(batch: int, seed: int) -> dict[str, Tensor]:
    return {"x": torch.zeros(batch, 2)}
