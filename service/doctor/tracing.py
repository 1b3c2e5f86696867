"""One run of a step, operation by operation, that notes what blocks a recording and goes on."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves, tree_map

from cachepolicy.reasons import RefusalReason
from service.backends.blockers import Blocker, Place, position
from service.backends.calls import Calls
from service.backends.watch import Watch, forget_compiled, storage_of, written
from service.doctor.calls import watch_streams, watch_waits
from service.doctor.hostdata import HostData
from service.doctor.patient import Patient
from service.doctor.streams import Streams

aten = torch.ops.aten

# Not counted: torch puts it in or leaves it out, depending on which modes are active.
UNCOUNTED = aten.detach.default

_IDLE = (aten._unsafe_view.default, aten.lift_fresh.default)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a run. `told` is what a recording would bake in: operands other than tensors, and the sizes of those."""

    name: str
    module: str
    place: Place | None
    works: bool  # launches work; views and bare allocations do not
    told: str


@dataclass(frozen=True, slots=True)
class Crossing:
    """Host memory that goes to the device in each step. `fault` says why it can't be moved there for good; empty where it can."""

    bytes: int
    fault: str


@dataclass(frozen=True, slots=True)
class Found:
    """A blocker and the operations [first, end) that it takes out; none where Python itself blocks between two operations."""

    blocker: Blocker
    first: int
    end: int
    crossing: Crossing | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """What one run did, and what was in the way."""

    operations: tuple[Operation, ...]
    found: tuple[Found, ...]


@dataclass(slots=True)
class _Host:
    """Host memory on its way to the device, to be judged at the end of the step."""

    storages: list[int]
    value: bytes
    bytes: int


def traces(patient: Patient) -> tuple[Trace, Trace]:
    """Run the step twice on different values, each time to its end. Whatever the model raises passes through."""
    one, two = Tracer(patient, patient.inputs(1)), Tracer(patient, patient.inputs(2))
    for tracer in (one, two):
        tracer.run(patient)
    return one.finish(two), two.finish(one)


class Tracer(Watch):  # type: ignore[no-untyped-call]
    """Notes every operation, and what Watch would refuse."""

    def __init__(self, patient: Patient, inputs: dict[str, torch.Tensor]) -> None:
        super().__init__(patient.model, inputs)
        self._inputs = inputs
        self._where = patient.model.device
        self.operations: list[Operation] = []
        self.found: list[tuple[Blocker, int, int, _Host | None]] = []
        self.host = HostData(self._owners.keys() | self._declared)
        self._streams: Streams | None = None
        self._lost: set[int] = set()
        self._compiled = False
        self._alive: dict[int, StorageWeakRef] = {}  # a storage's identity is not used again while a weak reference is held
        self._arguments: tuple[Any, ...] = ()

    def run(self, patient: Patient) -> None:
        """The step under watch: operations, calls that read or wait without being operations, and on CUDA the streams."""
        waits = watch_waits(self) if self._where.type == "cuda" else nullcontext()
        with torch.no_grad(), waits, watch_streams(self._where) as self._streams, self, Calls(self, self._device):
            patient.model.forward(dict(self._inputs), patient.variant)
        if self._compiled:
            forget_compiled()

    # -- what is seen

    def __torch_dispatch__(
        self, func: OpOverload | HigherOrderOperator, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if isinstance(func, HigherOrderOperator):
            self.calls_back(func)
            self._compiled = True
            return func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():  # what is done here is not the model's doing
            return func(*args, **(kwargs or {})) if func is UNCOUNTED else self._note(func, args, kwargs or {})

    def _note(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        at, before = len(self.operations), len(self.found)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        for tensor in tensors:
            self._know(tensor)
        module, place = position(self._paths)
        self.operations.append(Operation(_name(func), module, place, _works(func), _told(func, args, kwargs)))
        self._arguments = (args, kwargs)
        self.judge(func, args, kwargs)
        if self._streams is not None:
            self._judge_stream(self._streams, func, at)
        result = func(*args, **kwargs)
        self.judge_result(func, args, result)
        del self.found[before + 1 :]  # an operation is one blocker, whatever else is wrong with it
        if self._device != "cpu":
            self._follow_host(func, tensors, args, kwargs, result)
        return result

    def noted(self) -> int:
        """See Notes."""
        return len(self.found)

    def blocked(self, reason: RefusalReason, func: OpOverload, what: str = "") -> None:
        """Note it, and go on."""
        at = len(self.operations) - 1
        host = None
        if reason is RefusalReason.CPU_TENSOR:
            device = func is aten.lift_fresh.default
            crossing = [t for t in tree_leaves(self._arguments) if isinstance(t, torch.Tensor) and (device or t.device.type == "cpu")]
            host = _Host([storage_of(t) for t in crossing if not device], _values(crossing), sum(t.nbytes for t in crossing))
        self.found.append((Blocker.here(reason, _name(func), what, self._paths), at, at + 1, host))

    def call_blocked(self, reason: RefusalReason, call: str, what: str = "", host: tuple[str, int] | None = None) -> None:
        """Note it, and go on."""
        at = len(self.operations)
        crossing = _Host([], host[0].encode(), host[1]) if host else None
        self.found.append((Blocker.here(reason, call, what, self._paths), at, at, crossing))

    def host_read(self, tensor: torch.Tensor) -> None:
        """See Notes."""
        self.host.read(storage_of(tensor))

    def _judge_stream(self, streams: Streams, func: OpOverload, at: int) -> None:
        stream = torch.cuda.current_stream(self._where).cuda_stream
        if _works(func):
            if streams.is_astray(stream):
                self.blocked(RefusalReason.DEFAULT_STREAM, func)
            elif not streams.forked(stream) and stream not in self._lost:
                self._lost.add(stream)
                self.blocked(RefusalReason.UNJOINED_STREAM, func, "runs on a stream that did not wait for the main one first")
            streams.ran(stream, at)

    def _follow_host(
        self, func: OpOverload, tensors: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Keep track of what lives in host memory."""
        on_host = [storage_of(tensor) for tensor in tensors if tensor.device.type == "cpu"]
        if torch.Tag.data_dependent_output in func.tags:
            for storage in on_host:
                self.host.read(storage)
        for tensor in written(func, args, kwargs):
            if tensor.device.type == "cpu":
                self.host.changed(storage_of(tensor))
        fault = "it holds values of the device" if len(on_host) < len(tensors) else ""
        if torch.Tag.nondeterministic_seeded in func.tags:
            fault = "it is random"
        for made in tree_leaves(result):
            if not isinstance(made, torch.Tensor) or made.device.type != "cpu":
                continue
            self._know(made)
            if func is aten.lift_fresh.default:
                self.host.made(storage_of(made), (), "" if made.untyped_storage().resizable() else "it shares memory with Python")
            elif storage_of(made) not in on_host:
                self.host.made(storage_of(made), on_host, fault)

    def _know(self, tensor: torch.Tensor) -> None:
        storage = storage_of(tensor)
        if storage not in self._alive and tensor.layout is torch.strided:
            self._alive[storage] = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]

    # -- what comes of it

    def finish(self, other: Tracer) -> Trace:
        """Judge what only the whole step shows, and what only a second run does: a host tensor with other values."""
        for _, at in self._streams.unjoined() if self._streams is not None else ():
            operation = self.operations[at]
            if not any(first == at for _, first, _, _ in self.found):
                blocker = Blocker(RefusalReason.UNJOINED_STREAM, operation.name, "", operation.module, operation.place)
                self.found.append((blocker, at, at + 1, None))
        others = {(blocker, first): host.value for blocker, first, _, host in other.found if host is not None}
        found = [
            Found(blocker, first, end, None if host is None else Crossing(host.bytes, self._fault(host, others.get((blocker, first)))))
            for blocker, first, end, host in sorted(self.found, key=lambda entry: (entry[1], entry[2]))
        ]
        return Trace(tuple(self.operations), tuple(found))

    def _fault(self, host: _Host, other: bytes | None) -> str:
        known = next((fault for storage in host.storages if (fault := self.host.fault(storage))), "")
        return known or ("its values change from run to run" if other is not None and other != host.value else "")


def _name(func: OpOverload) -> str:
    return str(func).removesuffix(".default")


def _works(func: OpOverload) -> bool:
    """Whether an operation computes or moves anything."""
    if func in _IDLE or (func.namespace == "aten" and func._opname.startswith(("empty", "new_empty"))):
        return False
    returned = func._schema.returns
    return not returned or any(entry.alias_info is None or entry.alias_info.is_write for entry in returned)


def _told(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    def told(value: Any) -> Any:
        return f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else value

    return f"{func}{tree_map(told, (args, kwargs))}"


def _values(tensors: Iterable[torch.Tensor]) -> bytes:
    return b"".join(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors)
