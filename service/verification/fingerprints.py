"""What a model is at one moment: every tensor and plain value that its code can reach and change, made comparable.

Covers parameters, buffers, attributes of all submodules (containers and plain objects in them included), attributes of the classes behind
them, the globals, modules and closures that their functions name, and the environment. Tensors are compared by a digest of their bits.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, GeneratorType, MethodType, ModuleType

import numpy as np
import torch
from torch import nn
from torch._library.custom_ops import CustomOpDef
from torch.jit._script import RecursiveScriptModule
from torch.nn.parameter import is_lazy

from cachepolicy.reasons import RefusalReason
from service.backends.blockers import Blocked, Blocker

_CHUNK = 1 << 22  # words of a tensor that are digested at once: bounds the extra memory
_MOST = 50_000  # values that are looked at; what lies beyond is not compared
_DEPTH = 12
_PRIMITIVES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, Enum, range, slice)
_MACHINERY = (
    {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_backward_hooks", "_backward_pre_hooks", "_forward_hooks"}
    | {"_forward_pre_hooks", "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"}
    | {"_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs", "_is_full_backward_hook"}
)
_FOREIGN = sys.stdlib_module_names | {"torch", "numpy"}  # packages whose own state is not looked at

_ATTRIBUTE = "Return it as an output and take it as an input; what is kept only to be looked at must not be set when serving."
_ELSEWHERE = "Keep it out of what the model runs, or pass it in and out."

Fingerprint = object
InThread = Callable[[Callable[[], Fingerprint]], Fingerprint]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not what it was."""

    reason: RefusalReason
    path: str
    advice: str

    def refusal(self, what: str) -> Blocked:
        """The exception that says so."""
        return Blocker(self.reason, what=what, advice=self.advice).refusal()


class Snapshot:
    """All that is reachable, by path. `in_thread` runs a call in the thread that runs the model: some things exist once for each thread."""

    def __init__(self, module: nn.Module, *, exempt: AbstractSet[str] = frozenset(), in_thread: InThread = lambda call: call()) -> None:
        self._values: dict[tuple[RefusalReason, str], Fingerprint] = {(RefusalReason.STATEFUL, "os.environ"): dict(os.environ)}
        self._buffers: set[str] = set()
        walker = _Walker(in_thread)
        for path, part in module.named_modules():
            prefix = f"{path}." if path else ""
            for name, parameter in part._parameters.items():
                self._values[RefusalReason.PARAMETER_MUTATION, prefix + name] = walker.freeze(parameter)
            for name, buffer in part._buffers.items():
                self._buffers.add(prefix + name)
                if prefix + name not in exempt:
                    self._values[RefusalReason.STATEFUL, prefix + name] = walker.freeze(buffer)
            for name, value in (vars(part) | _script_attributes(part)).items():
                if name not in _MACHINERY:
                    self._values[RefusalReason.STATEFUL, prefix + name] = walker.freeze(value)
            walker.freeze(type(part))
        self._elsewhere = {"os.environ", *walker.elsewhere}
        self._values |= {(RefusalReason.STATEFUL, path): frozen for path, frozen in walker.elsewhere.items()}

    def changes(self, later: Snapshot, *, new_ones: bool = True) -> list[Change]:
        """What differs in a later snapshot. Without `new_ones`, things that did not exist or were None are passed over."""
        found = []
        for key, value in later._values.items():
            known = self._values.get(key)
            if known == value:
                continue
            if not new_ones and (known is None or known == _NOTHING):
                continue
            found.append(self._change(key))
        found += [self._change(key) for key in self._values if key not in later._values]
        return found

    def _change(self, key: tuple[RefusalReason, str]) -> Change:
        reason, path = key
        known = reason is RefusalReason.PARAMETER_MUTATION or path in self._buffers
        return Change(reason, path, "" if known else _ELSEWHERE if path in self._elsewhere else _ATTRIBUTE)


def _script_attributes(part: nn.Module) -> dict[str, object]:
    """What a TorchScript module holds where Python's own attributes do not show it."""
    if not isinstance(part, RecursiveScriptModule):
        return {}
    return {name: getattr(part, name) for name in part._concrete_type.get_attributes()}


class _Walker:
    """Freezes values; remembers within one snapshot what it saw, so that cycles end and shared tensors are read once."""

    def __init__(self, in_thread: InThread) -> None:
        self._seen: dict[int, tuple[object, str]] = {}  # holds the objects too, so that ids stay theirs
        self._tensors: dict[tuple[object, ...], Fingerprint] = {}
        self._in_thread = in_thread
        self.elsewhere: dict[str, Fingerprint] = {}  # outside the model: what its functions name, and attributes of classes

    def freeze(self, value: object, depth: int = 0) -> Fingerprint:
        """A comparable stand-in; equal for equal values."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, _PRIMITIVES):
            return (type(value).__name__, repr(value))
        if depth > _DEPTH or len(self._seen) > _MOST:
            return "beyond"
        known = self._seen.get(id(value))
        if known is not None:
            return ("again", known[1])
        self._seen[id(value)] = (value, str(len(self._seen)))
        return (type(value).__name__, self._inside(value, depth + 1))

    def _inside(self, value: object, depth: int) -> Fingerprint:  # noqa: C901, PLR0911, PLR0912 - one case for each kind of value
        freeze = self.freeze
        match value:
            case Mapping():
                return tuple((freeze(key, depth), freeze(item, depth)) for key, item in list(value.items()))
            case list() | tuple() | deque():
                return tuple(freeze(item, depth) for item in list(value))
            case set() | frozenset():
                return frozenset(repr(item) for item in value)
            case bytearray() | memoryview() | array():
                return value.hex() if isinstance(value, bytearray) else hash(bytes(value))
            case np.ndarray():
                return (str(value.dtype), value.shape, hash(value.tobytes()))
            case np.random.Generator():
                return repr(value.bit_generator.state)
            case np.random.RandomState():
                return repr(value.get_state())
            case random.SystemRandom():
                return None
            case random.Random():
                return hash(value.getstate())
            case torch.Generator():
                return hash(value.get_state().numpy().tobytes())
            case partial():
                return (freeze(value.func, depth), freeze(value.args, depth), freeze(value.keywords, depth))
            case MethodType():
                return (freeze(value.__func__, depth), freeze(value.__self__, depth))
            case FunctionType():
                return self._function(value, depth)
            case CustomOpDef():
                return freeze(value._init_fn, depth)
            case staticmethod() | classmethod():
                return freeze(value.__func__, depth)
            case property():
                return tuple(freeze(part, depth) for part in (value.fget, value.fset))
            case GeneratorType():
                frame = value.gi_frame
                return None if frame is None else (frame.f_lasti, freeze(dict(frame.f_locals), depth))
            case threading.local():
                return self._there(lambda: freeze(dict(vars(value)), depth))
            case ContextVar():
                return self._there(lambda: freeze(value.get(None), depth))
            case CellType():
                try:
                    return freeze(value.cell_contents, depth)
                except ValueError:  # not filled yet
                    return None
            case ModuleType():
                return None
            case BuiltinFunctionType():
                return freeze(value.__self__, depth)
            case SimpleQueue():
                return value.qsize()
            case type():
                self._class(value, depth)
                return value.__qualname__
            case Iterator():
                return self._pickled(value, depth) or repr(value)
            case _:
                return self._object(value, depth)

    def _there(self, call: Callable[[], Fingerprint]) -> Fingerprint:
        """Run in the model's thread; what is met there is already there."""
        in_thread, self._in_thread = self._in_thread, lambda inner: inner()
        try:
            return in_thread(call)
        finally:
            self._in_thread = in_thread

    def _function(self, function: FunctionType, depth: int) -> Fingerprint:
        if _is_foreign(function.__module__):
            return None
        names, space = _names(function.__code__), function.__globals__
        for name in names:
            value = space.get(name)
            if isinstance(value, ModuleType):
                if not _is_foreign(value.__name__):
                    for attribute in names:  # of which module an attribute is asked, the code's names don't tell
                        self._note(f"global {value.__name__}.{attribute}", vars(value).get(attribute), depth)
            else:
                self._note(f"global {Path(function.__code__.co_filename).stem}.{name}", value, depth)
        return tuple(self.freeze(part, depth) for part in (function.__closure__, vars(function), function.__defaults__))

    def _class(self, owner: type, depth: int) -> None:
        for base in owner.__mro__:
            if not _is_foreign(base.__module__):
                for name, value in list(vars(base).items()):
                    if not name.startswith("__"):
                        self._note(f"class {base.__qualname__}.{name}", value, depth)

    def _note(self, path: str, value: object, depth: int) -> None:
        if path not in self.elsewhere and value is not None and not isinstance(value, ModuleType):
            self.elsewhere[path] = None  # it may be reached again from itself
            self.elsewhere[path] = self.freeze(value, depth)

    def _pickled(self, value: object, depth: int) -> Fingerprint:
        """What Python can't see into (a stream, a number of C, where an iterator is) shows in what it would be pickled as."""
        with suppress(Exception):
            return self.freeze(value.__reduce_ex__(2), depth)
        return None

    def _object(self, value: object, depth: int) -> Fingerprint:
        owner = type(value).__module__
        if owner == "torch" or owner.startswith(("torch.fx", "torch.export", "torch._", "threading", "weakref", "logging")):
            return None
        self._class(type(value), depth)
        reached = [(name, self.freeze(part, depth)) for name, part in list(getattr(value, "__dict__", {}).items())]
        slots = [vars(base).get("__slots__", ()) for base in type(value).__mro__]
        names = [name for some in slots for name in ((some,) if isinstance(some, str) else some) if hasattr(value, name)]
        reached += [(name, self.freeze(getattr(value, name), depth)) for name in names if name != "__dict__"]
        return tuple(reached) or self._pickled(value, depth)

    def _tensor(self, tensor: torch.Tensor) -> Fingerprint:
        if is_lazy(tensor):
            return _NOTHING
        if tensor.layout is not torch.strided:
            return ("tensor", str(tensor.layout), tuple(tensor.shape), *(self._tensor(part) for part in _components(tensor)))
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.layout)
        if key not in self._tensors:
            self._tensors[key] = ("tensor", str(tensor.dtype), str(tensor.device), tuple(tensor.shape), digest(tensor))
        return self._tensors[key]


_NOTHING = ("NoneType", "None")


def _components(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors that a sparse one consists of."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor.to_dense(),)


def _is_foreign(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _FOREIGN


def _names(code: CodeType) -> list[str]:
    """Global names that a function's code mentions, nested functions included."""
    inner = [name for part in code.co_consts if isinstance(part, CodeType) for name in _names(part)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def digest(tensor: torch.Tensor) -> int:
    """A number that changes with the bits of a tensor and with their order."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor._version
    if tensor.numel() == 0 or tensor.is_meta:
        return 0
    data = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    words = data.view(torch.int32) if data.numel() % 4 == 0 and data.data_ptr() % 4 == 0 else data
    weights = torch.arange(1, 2 * min(words.numel(), _CHUNK) + 1, 2, device=tensor.device)
    weights ^= weights << 17  # so that sums of neighbours do not cancel
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, words.numel(), _CHUNK):
        part = words[start : start + _CHUNK].to(torch.int64)
        total = total * 31 + (part * weights[: part.numel()]).sum()
    return int(total)


def slot_digests(buffer: torch.Tensor) -> torch.Tensor:
    """A digest for each slot (dimension 0) of a state buffer; INT64 [slots]."""
    return torch.tensor([digest(buffer[slot]) for slot in range(len(buffer))])


def foreign_hooks(module: nn.Module) -> Sequence[str]:
    """Hooks that are not torch's own, by module: their Python runs in an eager call and would be skipped by a replay."""
    found = []
    for path, part in module.named_modules():
        hooks: list[Callable[..., object]] = [*part._forward_hooks.values(), *part._forward_pre_hooks.values()]
        for hook in hooks:
            owner = getattr(getattr(hook, "__func__", hook), "__module__", None) or type(hook).__module__
            if not owner.startswith("torch."):
                found.append(f"{getattr(hook, '__qualname__', type(hook).__name__)} on {path or 'the model'}")
    return found
