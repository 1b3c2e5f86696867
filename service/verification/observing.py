"""One eager run of a throw-away instance, with an eye on what it does besides answering."""

from __future__ import annotations

import datetime as dt
import os
import pickle
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import BuiltinFunctionType, FrameType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from service.backends.base import Backend, Batch, Outputs, Part
from service.backends.watch import forget_compiled
from service.models.loaded import DATATYPES, LoadedModel
from service.models.spec import Shape, Variant
from service.tensors import Datatype
from service.verification.comparing import coarser
from service.verification.fingerprints import digest
from service.verification.samples import Inputs

_CLOCKS = (time.time, time.time_ns, time.localtime, time.gmtime, time.ctime)
_DATES = ("now", "utcnow", "today")
_CLOCK_READERS = ("logging", "torch")  # a time that is written to a log or a trace is no part of an answer
_NO_DRAWS = ("getstate", "setstate")


@dataclass(slots=True)
class Run:
    """One run: its answer, the input it wrote to, the generators it moved."""

    outputs: Outputs = field(default_factory=dict)
    wrote_to: str = ""
    drew_from: set[str] = field(default_factory=set)


class Witness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of a run, and what its Python asks the system for."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.precision: Datatype | None = None  # the coarsest float datatype it computes in
        self.floats_to_integers = False
        self.drew_from: set[str] = set()  # of Python's and the system's generators
        self.clock = ""  # the call that read it
        self.higher_order = ""  # an operator that calls back into Python

    def __torch_dispatch__(
        self, func: OpOverload | HigherOrderOperator, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if isinstance(func, HigherOrderOperator):
            self.higher_order = str(func)
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if not isinstance(leaf, torch.Tensor):
                continue
            if leaf.is_floating_point():
                datatype = DATATYPES.get(leaf.dtype, Datatype.BF16)  # eight-bit floats have no wire format
                self.precision = coarser(datatype, self.precision)
            elif func is torch.ops.aten._to_copy.default and args[0].is_floating_point() and leaf.dtype is not torch.bool:
                self.floats_to_integers = True
        return result

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        """A profile function for this thread: notes draws from `random`, whose state other threads move, too, and reads of the clock."""
        if event != "c_call" or not isinstance(argument, BuiltinFunctionType):
            return
        name, owner = argument.__name__, argument.__self__
        if isinstance(owner, random.Random) and name not in _NO_DRAWS:
            self.drew_from.add("random")
        elif argument is os.urandom:
            self.drew_from.add("os.urandom")
        elif _tells_time(argument) and str(frame.f_globals.get("__name__")).partition(".")[0] not in _CLOCK_READERS:
            self.clock = argument.__qualname__ if isinstance(owner, type) else f"time.{name}"


def _tells_time(call: BuiltinFunctionType) -> bool:
    owner = call.__self__
    return call in _CLOCKS or (isinstance(owner, type) and issubclass(owner, dt.date) and call.__name__ in _DATES)


class _Observed(nn.Module):
    """Calls a model and notes in `run` what else happened."""

    def __init__(self, model: LoadedModel, run: Run) -> None:
        super().__init__()
        self._call = model.module.__call__  # a method, so that the model does not become a part of this
        self._device = model.device
        self._run = run

    def forward(self, **inputs: Any) -> object:
        """The model's own result."""
        tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        given = {name: digest(tensor) for name, tensor in tensors.items()}
        generators = _generators(self._device)
        result: object = self._call(**inputs)
        self._run.drew_from = {name for name, state in _generators(self._device).items() if state != generators[name]}
        self._run.wrote_to = next((name for name, tensor in tensors.items() if digest(tensor) != given[name]), "")
        return result


def observe(backend: Backend, model: LoadedModel, variant: Variant, inputs: Inputs, shape: Shape, witness: Witness | None = None) -> Run:
    """Run the step once, on the lane's thread. Raises what `Backend.run_eager` raises."""
    run = Run()
    observed = replace(model, module=_Observed(model, run))
    try:
        with _watched_by(witness):
            run.outputs = backend.run_eager(observed, variant, Batch([Part(inputs, shape)], shape))[0]
    finally:
        if witness is not None and witness.higher_order:
            forget_compiled()
    return run


@contextmanager
def _watched_by(witness: Witness | None) -> Iterator[None]:
    if witness is None:
        yield
        return
    sys.setprofile(witness.profile)
    try:
        with witness:
            yield
    finally:
        sys.setprofile(None)


def _generators(device: torch.device) -> dict[str, int]:
    """Digests of the global generators' states; Python's own is the witness' business."""
    states = {
        "torch": hash(torch.get_rng_state().numpy().tobytes()),
        "numpy": _numpy_state(),
    }
    if device.type == "cuda":
        states["cuda"] = hash(torch.cuda.get_rng_state(device).numpy().tobytes())
    return states


def _numpy_state() -> int:
    state = np.random.get_state(legacy=False)  # noqa: NPY002 - the global generator is what a model may draw from
    return hash(pickle.dumps(state))
