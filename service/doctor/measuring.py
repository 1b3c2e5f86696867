"""Clocks: how long a run takes, and how long each of its operations keeps the device busy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from service.backends.watch import forget_compiled

_WARM_UP = 3
_LEAST = 7
_MOST = 1000
_BUDGET_S = 0.08
_PROFILED = 5

Forward = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Kernel:
    """What one name stands for in one step: how often it ran, and for how many seconds in all."""

    name: str
    count: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """What one step asks of the device: kernels on CUDA, operations on a CPU; the longest first."""

    kernels: tuple[Kernel, ...]

    @property
    def count(self) -> float:
        """How many there are."""
        return sum(kernel.count for kernel in self.kernels)

    @property
    def seconds(self) -> float:
        """How long they take, one after the other."""
        return sum(kernel.seconds for kernel in self.kernels)


def undisturbed(*runs: Callable[[], object]) -> list[float]:
    """Seconds of one run of each when nothing comes between: the fastest of many.

    They take turns: what is compared has to be free of what else the machine did meanwhile.
    """
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(_WARM_UP):
        for run in runs:
            run()
    while len(taken[0]) < _LEAST or (sum(map(sum, taken)) < _BUDGET_S * len(runs) and len(taken[0]) < _MOST):
        for run, seconds in zip(runs, taken, strict=True):
            started = perf_counter()
            run()
            seconds.append(perf_counter() - started)
    return [min(seconds) for seconds in taken]


def synchronise(device: torch.device) -> None:
    """Wait for what this thread's stream was given."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def submitted(forward: Forward, device: torch.device) -> float:
    """Seconds that the host needs to hand one step to an idle device."""
    taken: list[float] = []
    for _ in range(_WARM_UP + _LEAST):
        synchronise(device)
        started = perf_counter()
        forward()
        taken.append(perf_counter() - started)
    synchronise(device)
    return median(taken[_WARM_UP:])


def work_of(forward: Forward, device: torch.device) -> Work:
    """Every kernel of a step (CUDA), or every operation (CPU), with its own duration."""
    return _kernels(forward, device) if device.type == "cuda" else _operations(forward)


def _kernels(forward: Forward, device: torch.device) -> Work:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    for repeats in (1, _PROFILED):  # the first profile of a process pays for setting the profiler up
        with torch.profiler.profile(activities=activities) as profile:
            for _ in range(repeats):
                forward()
            synchronise(device)
    totals: dict[str, tuple[int, float]] = {}
    for event in profile.events():
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation:
            count, seconds = totals.get(event.name, (0, 0.0))
            totals[event.name] = (count + 1, seconds + event.time_range.elapsed_us() * 1e-6)
    return _ordered({name: (count / _PROFILED, seconds / _PROFILED) for name, (count, seconds) in totals.items()})


def _operations(forward: Forward) -> Work:
    runs: list[_Stopwatch] = []
    while len(runs) < _PROFILED or (sum(run.seconds for run in runs) < _BUDGET_S and len(runs) < _MOST):
        with _Stopwatch() as watch:
            forward()
        if watch.compiled:
            forget_compiled()
        runs.append(watch)
    return _ordered(min(runs, key=lambda run: run.seconds).totals)


def _ordered(totals: dict[str, tuple[float, float]]) -> Work:
    kernels = [Kernel(name, count, seconds) for name, (count, seconds) in totals.items()]
    return Work(tuple(sorted(kernels, key=lambda kernel: -kernel.seconds)))


class _Stopwatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Times each operation. What it adds to each is the same for all, and calibration takes it off again."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.totals: dict[str, tuple[float, float]] = {}
        self.seconds = 0.0
        self.compiled = False

    def __torch_dispatch__(
        self, func: OpOverload | HigherOrderOperator, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.compiled |= isinstance(func, HigherOrderOperator)
        started = perf_counter()
        result = func(*args, **(kwargs or {}))
        taken = perf_counter() - started
        name = str(func).removesuffix(".default")
        count, seconds = self.totals.get(name, (0.0, 0.0))
        self.totals[name] = (count + 1, seconds + taken)
        self.seconds += taken
        return result
