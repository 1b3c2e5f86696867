"""Steps that answer differently at one size of the batch, which their code names in one way or another. x [batch, 4] → [batch, 4]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

SIZE = 40  # none that a proof tries of its own accord below 64
_RULES = {"sizes": [SIZE]}


@dataclass
class Settings:
    """As configurations of models are kept."""

    first: int = 3
    special: dict[str, tuple[int, ...]] = field(default_factory=lambda: {"sizes": (SIZE,)})


class Step(nn.Module):
    """Doubles its answer where `special` says so."""

    def special(self, rows: int) -> bool:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sin(x)
        return y * 2 if self.special(x.shape[0]) else y


class Literal(Step):
    def special(self, rows: int) -> bool:
        return rows == 40


class Between(Step):
    def special(self, rows: int) -> bool:
        return 39 < rows < 41


class Member(Step):
    def special(self, rows: int) -> bool:
        return rows in (40, 50)


class Remainder(Step):
    def special(self, rows: int) -> bool:
        return rows % 41 == 40


class Attribute(Step):
    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings()

    def special(self, rows: int) -> bool:
        return rows in self.settings.special["sizes"]


class Global(Step):
    def special(self, rows: int) -> bool:
        return rows in _RULES["sizes"]


class Helper(Step):
    def special(self, rows: int) -> bool:
        return _is_special(rows)


class Inner(Step):
    def special(self, rows: int) -> bool:
        return any(map(lambda size: rows == size, range(40, 41)))  # noqa: C417 - a function within a function


class Default(Step):
    def special(self, rows: int, size: int = 40) -> bool:
        return rows == size


class Closed(Step):
    def __init__(self) -> None:
        super().__init__()
        self.rule = _equal_to(40)

    def special(self, rows: int) -> bool:
        return self.rule(rows)


class Unreadable:
    """Answers every question about it with an error."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)


class Guarded(Step):
    """Holds one of those."""

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["guard"] = Unreadable()  # torch, too, would ask it what it is

    def special(self, rows: int) -> bool:
        return rows == 40


class Scripted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.sin(x)
        if x.size(0) == 40:
            y = y * 2
        return y


class Harmless(Step):
    """Names the size and does not look at the batch's."""

    def special(self, rows: int) -> bool:
        return rows < 0 and len(_RULES["sizes"]) == SIZE


def _is_special(rows: int) -> bool:
    return rows == SIZE


def _equal_to(size: int) -> Callable[[int], bool]:
    return lambda rows: rows == size
