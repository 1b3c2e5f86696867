"""Integers that a model's code names: where a branch is taken at one size only, that size stands in the code, or near it.

Read, never run: constants of the functions of the model's classes and of the functions that these name, attributes of its modules and of
what they hold, class attributes, globals; for TorchScript, its source. torch's own modules are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType

from torch import nn
from torch.jit._script import RecursiveScriptModule

_FOREIGN = ("torch", "numpy", "builtins")
_DEPTH = 6  # of containers and plain objects
_ITEMS = 64  # that are looked at in one container
_MOST = 20_000  # values that are looked at
_PARTS = ("_parameters", "_buffers", "_modules")  # of a module, each of which is looked at by itself
_NUMBER = re.compile(r"(?<![\w.])\d{1,6}(?![\w.])")


def named_integers(module: nn.Module) -> frozenset[int]:
    """Those above one, of a model and all its parts."""
    reader = _Reader()
    for part in module.modules():
        if isinstance(part, RecursiveScriptModule):
            reader.found.update(int(number) for number in _NUMBER.findall(str(part.code)))
        elif not _foreign(type(part).__module__):
            with suppress(Exception):  # of an object that answers with errors; what was found until then is good
                reader.look(part)
    return frozenset(number for number in reader.found if number > 1)


def _foreign(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _FOREIGN


class _Reader:
    """Collects integers; looks at nothing twice."""

    def __init__(self) -> None:
        self.found: set[int] = set()
        self._seen: dict[int, object] = {}  # holds what it has seen, so that no other takes its id

    def look(self, value: object, depth: int = 0) -> None:  # noqa: C901 - one case for each kind of value
        if isinstance(value, int):
            self.found.add(int(value))
            return
        if depth > _DEPTH or id(value) in self._seen or len(self._seen) > _MOST:
            return
        self._seen[id(value)] = value
        match value:
            case Mapping():
                self._all([part for item in islice(dict(value).items(), _ITEMS) for part in item], depth)
            case list() | tuple() | set() | frozenset():
                self._all(islice(value, _ITEMS), depth)
            case range():
                self._all((value.start, value.stop, value.step), depth)
            case slice():
                self._all((value.start, value.stop, value.step), depth)
            case CodeType():
                self._all(value.co_consts, depth)
            case FunctionType():
                self._function(value, depth)
            case MethodType():
                self._all((value.__func__, value.__self__), depth)
            case staticmethod() | classmethod():
                self.look(value.__func__, depth)
            case property():
                self.look(value.fget, depth)
            case type():
                self._class(value, depth)
            case _ if not _foreign(type(value).__module__):
                self._class(type(value), depth)
                own = dict(getattr(value, "__dict__", {}))
                self._all([part for name, part in islice(own.items(), _ITEMS) if name not in _PARTS], depth)
            case _:
                return

    def _all(self, values: Iterable[object], depth: int) -> None:
        for value in values:
            self.look(value, depth + 1)

    def _class(self, owner: type, depth: int) -> None:
        for base in owner.__mro__:
            if not _foreign(base.__module__):
                self._all([part for name, part in dict(vars(base)).items() if not (name.startswith("__") and isinstance(part, int))], depth)

    def _function(self, function: FunctionType, depth: int) -> None:
        if _foreign(function.__module__):
            return
        self._code(function.__code__, function.__globals__)
        self._all((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()), depth)
        for cell in function.__closure__ or ():
            try:
                self.look(cell.cell_contents, depth + 1)
            except ValueError:  # not filled yet
                continue

    def _code(self, code: CodeType, space: Mapping[str, object]) -> None:
        """Depth does not count: what code names may itself be far from the model."""
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._code(constant, space)
            else:
                self.look(constant)
        for name in code.co_names:
            value = space.get(name)
            if isinstance(value, ModuleType):
                if not _foreign(value.__name__):  # of which module an attribute is asked, the code's names don't tell
                    self._all([vars(value)[other] for other in code.co_names if other in vars(value)], 0)
            elif value is not None:
                self.look(value)
