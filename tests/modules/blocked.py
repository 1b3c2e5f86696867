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
        return torch.tanh(self.after(self.middle(torch.relu(self.before(x)))))

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
        return torch.add(h, torch.unique(h).sum())


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
    (DropsOut, RefusalReason.NONDETERMINISTIC, "aten."),
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
        return torch.sigmoid(self.outer(h))


class Block(nn.Module):
    def __init__(self, blocks: bool) -> None:
        super().__init__()
        self.attn = Attention(blocks)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return torch.add(h, self.attn(h))


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
        return torch.sin(self.before(h)) if h.mean().item() > 0.5 else torch.cos(self.after(h))


class Scales(Base):
    """What it read is an operand of what comes next."""

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return (h * h.mean().item()).sin().cos()


class CopiesFromHost(nn.Module):
    """Adds something made in host memory; subclasses say what."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(4.0)  # an attribute, so that it stays in host memory

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.constant().to(x.device)

    def constant(self) -> torch.Tensor:
        return torch.exp(-torch.arange(4, dtype=torch.float32) / 4)


class CopiesALiteral(CopiesFromHost):
    def constant(self) -> torch.Tensor:
        return torch.tensor([1.0, 2.0, 3.0, 4.0]) * 2


class CopiesItsTable(CopiesFromHost):
    def constant(self) -> torch.Tensor:
        return self.table


class ReadsWhatItCopies(CopiesFromHost):
    def constant(self) -> torch.Tensor:
        made = torch.arange(4.0)
        return made if made.sum().item() > 0 else -made


class ListsWhatItCopies(CopiesFromHost):
    def constant(self) -> torch.Tensor:
        return self.table if self.table.tolist()[0] == 0 else -self.table


class ChangesWhatItCopies(CopiesFromHost):
    def constant(self) -> torch.Tensor:
        made = torch.arange(4.0)
        made[0] = 7
        return made


class ChangesItsTable(CopiesFromHost):
    def constant(self) -> torch.Tensor:
        return self.table.add_(1)


class CopiesNumpyMemory(CopiesFromHost):
    def __init__(self) -> None:
        super().__init__()
        self.array = torch.arange(4.0).numpy()

    def constant(self) -> torch.Tensor:
        return torch.from_numpy(self.array)


class CopiesNoise(CopiesFromHost):
    def constant(self) -> torch.Tensor:
        return torch.rand(4)


class CopiesACounter(CopiesFromHost):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def constant(self) -> torch.Tensor:
        self.calls += 1
        return torch.full((4,), float(self.calls))


MOVABLE: list[type[CopiesFromHost]] = [CopiesFromHost, CopiesALiteral, CopiesItsTable]
NOT_MOVABLE: list[tuple[type[CopiesFromHost], str]] = [
    (ReadsWhatItCopies, "the host reads it"),
    (ListsWhatItCopies, "the host reads it"),
    (ChangesWhatItCopies, "the host changes it"),
    (ChangesItsTable, "the host changes it"),
    (CopiesNumpyMemory, "it shares memory with Python"),
    (CopiesNoise, "it is random"),
    (CopiesACounter, "its values change from run to run"),
]
