"""Small models of which each has one thing that a recording can't repeat, and some that have several or none."""

from __future__ import annotations

import torch
from torch import nn

from cachepolicy.reasons import RefusalReason


class Base(nn.Module):
    """x [batch, 4] → [batch, 4]; a layer before and a layer after what a subclass does."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(4, 4)
        self.after = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.middle(torch.relu(self.before(x)))).tanh()

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return h


class ReadsItem(Base):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return h * h.mean().item()


class BranchesOnValue(Base):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return h * 2 if (h > 1e9).any() else h


class MakesAList(Base):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return h + len(h.sum(1).tolist())


class GoesThroughNumpy(Base):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(h.detach().cpu().numpy() * 2).to(h.device)


class SelectsByMask(Base):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return h + h[h > 0.1].sum()


class FindsNonzero(Base):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return h + torch.nonzero(h).sum()


class CountsDistinct(Base):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return h + torch.unique(h).sum()


class DrawsFromItsOwnGenerator(Base):
    def __init__(self) -> None:
        super().__init__()
        self.generator: dict[str, torch.Generator] = {}

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        own = self.generator.setdefault("own", torch.Generator(h.device))
        return h + torch.rand(h.shape, generator=own, device=h.device)


class DropsOut(Base):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(h, 0.5, training=True)


class WritesItsInput(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.add_(1))


class WritesAParameter(Base):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        self.after.weight.data.mul_(0.5)
        return h


class CountsInABuffer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        self.get_buffer("calls").add_(1)
        return h + self.get_buffer("calls")


class LeftInTraining(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        self.norm.train()
        return h


BLOCKED: list[tuple[type[nn.Module], RefusalReason, str]] = [
    (ReadsItem, RefusalReason.SYNC, "aten._local_scalar_dense"),
    (BranchesOnValue, RefusalReason.SYNC, "aten._local_scalar_dense"),
    (SelectsByMask, RefusalReason.DATA_DEPENDENT, "aten.index.Tensor"),
    (FindsNonzero, RefusalReason.DATA_DEPENDENT, "aten.nonzero"),
    (CountsDistinct, RefusalReason.DATA_DEPENDENT, "aten._unique2"),
    (DrawsFromItsOwnGenerator, RefusalReason.RNG, "aten.rand.generator"),
    (DropsOut, RefusalReason.NONDETERMINISTIC, "aten.bernoulli_.float"),
    (WritesItsInput, RefusalReason.INPUT_MUTATION, "aten.add_.Tensor"),
    (WritesAParameter, RefusalReason.PARAMETER_MUTATION, "aten.mul_.Tensor"),
    (CountsInABuffer, RefusalReason.STATEFUL, "aten.add_.Tensor"),
    (LeftInTraining, RefusalReason.TRAINING_MODE, ""),
]


class Attention(nn.Module):
    """Stops for a value in the middle."""

    def __init__(self, blocks: bool) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)
        self.blocks = blocks

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.inner(h))
        if self.blocks and h.sum().item() > 1e30:
            h = h / 2
        return self.outer(h).sigmoid()


class Block(nn.Module):
    def __init__(self, blocks: bool) -> None:
        super().__init__()
        self.attn = Attention(blocks)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.attn(h)


class ThreeBlockers(nn.Module):
    """Five blocks, of which the first, the third and the fifth stop; the state of their weights is the same in every process."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(number % 2 == 0) for number in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class HasABranch(Base):
    """The branch decides which layer runs."""

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return self.before(h) if h.mean().item() > 0.5 else self.after(h).cos()


class Scales(Base):
    """What it read is an operand of what comes next."""

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return (h * h.mean().item()).sin().cos()
