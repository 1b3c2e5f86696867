"""Small steps that behave differently on a GPU."""

# mypy: disable-error-code="no-any-return,no-untyped-call"
# (calling a submodule, and making a stream, has no type)

from __future__ import annotations

import torch
from torch import nn


class HostConstant(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.arange(4, dtype=torch.float32).to(x.device)


class LiteralInCode(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([0.5, 1.0, 2.0, 4.0], device=x.device)


class WaitsForTheStream(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.repeat(1, 4096) * 2
        torch.cuda.current_stream(x.device).synchronize()
        return h[:, :4]


class WaitsForTheDevice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x * 2
        torch.cuda.synchronize(x.device)
        return h + 1


class ForgetsToJoin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.side: torch.cuda.Stream | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.side is None:
            self.side = torch.cuda.Stream(x.device)
        here = torch.cuda.current_stream(x.device)
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            self.lost = x.repeat(1, 4096) * 3
        return x * 2


class ForksAndJoins(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        here, side = torch.cuda.current_stream(x.device), torch.cuda.Stream(x.device)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            right = x * 3
        left = x * 2
        here.wait_stream(side)
        return left + right


class Products(nn.Module):
    """Linear, matmul and bmm over a wide hidden layer: kernels that take workspaces."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(4, hidden)
        self.mix = nn.Parameter(torch.randn(hidden, hidden) * hidden**-0.5)
        self.down = nn.Linear(hidden, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.up(x) @ self.mix)
        folded = h.view(len(x), 16, -1)
        h = torch.bmm(torch.bmm(folded, folded.transpose(1, 2)), folded).reshape_as(h)
        return self.down(h.tanh())


class GrowsATable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.zeros(0, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.table) < len(x):
            self.table = torch.arange(len(x) * 4, dtype=x.dtype, device=x.device).view(-1, 4)
        return x + self.table[: len(x)]


class Greedy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = x.repeat(64, 2**18)
        more = torch.empty(2**42, dtype=torch.uint8, device=x.device)
        return held[: len(x), :4] + more[:4]


class Looks(nn.Module):
    """Looks rows up by what it is given; raises on the host for a first value of -1."""

    def __init__(self, raises: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)
        self.raises = raises

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.raises:
            raise ValueError("no")
        return self.table(x[:, 0].long())
