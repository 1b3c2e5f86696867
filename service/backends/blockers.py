"""What stands in the way of a recording, and where: told in the same words by a refusal's detail and by `graphcache doctor`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from types import FrameType

import torch
from torch import nn

from cachepolicy.reasons import RefusalReason
from service.errors import CaptureRefused, ModelRaised, told
from service.models.loaded import LoadedModel

_SERVICE = Path(__file__).parent.parent
# Never the model's own code, though it may stand between the model and torch
_MACHINERY = (str(Path(torch.__file__).parent), str(_SERVICE / "backends"), str(_SERVICE / "doctor"), "<")
_STEP = LoadedModel.forward.__code__


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the model's code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}, in {self.function}"


@dataclass(frozen=True, slots=True)
class Blocker:
    """One operation that rules a recording out; or a fact about the model, where no single operation is to blame."""

    reason: RefusalReason
    operation: str = ""
    what: str = ""  # what the operation does that it may not; without an operation, the whole fact
    module: str = ""  # path of the innermost module that runs it
    place: Place | None = None
    advice: str = ""  # where the reason's own hint is too general

    @property
    def hint(self) -> str:
        """How to change the model."""
        return self.advice or self.reason.hint

    @property
    def where(self) -> str:
        """Module path and line, as far as they are known."""
        return " ".join(filter(None, [f"in {self.module}" if self.module else "", f"at {self.place}" if self.place else ""]))

    @property
    def detail(self) -> str:
        """The refusal's detail: operation, place, and how to change the model."""
        return f"{' '.join(filter(None, [self.operation, self.what, self.where]))}: {self.hint}"

    def refusal(self) -> Blocked:
        """The exception that says this."""
        return Blocked(self)

    @classmethod
    def here(cls, reason: RefusalReason, operation: str, what: str, paths: Mapping[int, str]) -> Blocker:
        """What the model's code does at this moment. `paths` are its modules' paths by their ids."""
        return cls(reason, operation, what, *position(paths))

    @classmethod
    def of_error(cls, reason: RefusalReason, error: BaseException, paths: Mapping[int, str]) -> Blocker:
        """What the model's code did when it raised."""
        if isinstance(error, ModelRaised):
            error = error.error
        steps = list(_raised(error))
        what = told(error).partition("\n")[0]  # the runtime appends advice on debugging
        return cls(reason, "", what, _module(steps, paths), _place(steps))


class Blocked(CaptureRefused):
    """Refused for a blocker."""

    def __init__(self, blocker: Blocker) -> None:
        super().__init__(blocker.reason, blocker.detail)
        self.blocker = blocker

    def again(self) -> Blocked:
        """See CaptureRefused."""
        return Blocked(self.blocker)


Step = tuple[FrameType, int]  # a frame and the line it is at


def paths_of(module: nn.Module) -> dict[int, str]:
    """Paths of all parts by their ids."""
    return {id(part): path for path, part in module.named_modules()}


def position(paths: Mapping[int, str]) -> tuple[str, Place | None]:
    """The module and the line that the step is at."""
    steps = list(_running())
    return _module(steps, paths), _place(steps)


def place_of_call() -> Place | None:
    """The innermost line that is neither torch's nor the machinery's: where the model's code is."""
    return _place(_running())


def _place(steps: Iterable[Step]) -> Place | None:
    for frame, line in steps:
        if not frame.f_code.co_filename.startswith(_MACHINERY):
            return Place(frame.f_code.co_filename, line, frame.f_code.co_name)
    return None


def _module(steps: Iterable[Step], paths: Mapping[int, str]) -> str:
    """The innermost module whose method is running."""
    return next((paths[own] for frame, _ in steps if (own := id(frame.f_locals.get("self"))) in paths), "")


def _running() -> Iterator[Step]:
    """From here outwards to the step's beginning."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _STEP:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _raised(error: BaseException) -> Iterator[Step]:
    """From where an error was raised outwards to the step's beginning."""
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        if frame.f_code is _STEP:
            return
        yield frame, line
