"""Cuts segments out of a running step and records each by itself: the proof that what lies between two blockers can be captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any

import torch
from torch import fx, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from service.backends.cuda_capture import CAPTURE_LOCK, CaptureFailed, capture
from service.backends.lowering import lower
from service.backends.program import Program
from service.backends.watch import forget_compiled, storage_of, written
from service.choices import Compile
from service.doctor.patient import Patient
from service.doctor.tracing import UNCOUNTED
from service.errors import CaptureRefused

aten = torch.ops.aten

Range = tuple[int, int]  # operations [first, end) of a run


def try_segments(patient: Patient, seed: int, ranges: Sequence[Range], names: Sequence[str]) -> list[str]:
    """Record each range of the step's operations by itself, replay it, and compare with what the step computed.

    `names` are the operations expected. Returns for each range why it can't be captured; empty where it was captured and is right.
    """
    inputs = patient.inputs(seed)
    cutter = _Cutter(ranges, names, [*patient.model.module.parameters(), *patient.model.module.buffers()])
    with torch.no_grad(), cutter:
        patient.model.forward(inputs, patient.variant)
    if cutter.compiled:
        forget_compiled()
    cutter.end()
    return [piece.problem(patient.model.device) for piece in cutter.pieces]


class _Cutter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands the operations of each range to a piece of its own."""

    supports_higher_order_operators = True

    def __init__(self, ranges: Sequence[Range], names: Sequence[str], held: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pieces = [Piece(held) for _ in ranges]
        self._piece_of = {at: piece for piece, (first, end) in zip(self.pieces, ranges, strict=True) for at in range(first, end)}
        self._last = {end - 1 for _, end in ranges}
        self._names = names
        self._at = -1
        self._open: Piece | None = None
        self.compiled = False

    def __torch_dispatch__(
        self, func: OpOverload | HigherOrderOperator, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, piece = kwargs or {}, self._open
        if isinstance(func, HigherOrderOperator):  # in no range
            self.compiled = True
            return func(*args, **kwargs)
        if func is not UNCOUNTED:
            self._at += 1
            piece = self._open = self._piece_of.get(self._at)
            if piece is not None and self._names[self._at] != str(func).removesuffix(".default"):
                piece.went_astray = True
        with torch._C.DisableTorchFunction():
            if piece is None:
                return func(*args, **kwargs)
            piece.before(args, kwargs)
            result = func(*args, **kwargs)
            piece.after(func, args, kwargs, result)
            if self._at in self._last:
                piece.close()
                self._open = None
        return result

    def end(self) -> None:
        """The step is over: a piece that is still open was never reached, or left early."""
        for piece in self.pieces:
            piece.went_astray |= not piece.closed


class Piece:
    """One segment: its operations, copies of what it was given, and what it computed."""

    def __init__(self, held: Sequence[torch.Tensor]) -> None:
        self.went_astray = False
        self.closed = False
        self._held = {storage_of(tensor) for tensor in held}  # weights are read where they are
        self._operations: list[tuple[OpOverload, tuple[Any, ...], dict[str, Any], Any]] = []
        self._given: dict[int, torch.Tensor] = {}  # by id of the step's own tensor: the twin that replays read
        self._memory: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}  # by storage: what replays use, and as it was
        self._made: dict[int, torch.Tensor] = {}  # by storage: the first tensor over it
        self._changed: dict[int, torch.Tensor] = {}
        self._unset: set[int] = set()  # storages that began without values
        self._expected: dict[int, torch.Tensor] = {}

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operation is about to run: what comes from outside the segment is copied now."""
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and id(tensor) not in self._given and storage_of(tensor) not in self._made:
                self._given[id(tensor)] = self._twin(tensor)

    def after(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """It ran."""
        self._operations.append((func, args, kwargs, result))
        for tensor in written(func, args, kwargs):
            if storage_of(tensor) in self._memory:
                self._changed.setdefault(storage_of(tensor), tensor)
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and not self._is_outside(tensor) and storage_of(tensor) not in self._made:
                self._made[storage_of(tensor)] = tensor
                if func._opname.startswith(("empty", "new_empty")):
                    self._unset.add(storage_of(tensor))

    def close(self) -> None:
        """The segment is over: keep what it computed, before later operations change it."""
        self.closed = True
        results = [tensor for storage, tensor in (self._made | self._changed).items() if storage not in self._unset]
        self._expected = {id(tensor): tensor.detach().clone() for tensor in results}

    def problem(self, device: torch.device) -> str:
        """Record it, replay it, compare."""
        if self.went_astray:
            return "the step took another path when it was run again"
        program, targets = self._program()
        try:
            step = _captured(program, device) if device.type == "cuda" else lower(program, Compile.NONE)
        except (CaptureRefused, CaptureFailed) as error:
            return str(error)
        for used, original in self._memory.values():
            used.copy_(original)
        step()
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        for name, target in targets.items():
            try:
                torch.testing.assert_close(target, self._expected[name], equal_nan=True)
            except AssertionError as error:
                return f"its replay differs from the step: {' '.join(str(error).split())}"
        return ""

    def _program(self) -> tuple[Program, dict[int, torch.Tensor]]:
        graph = fx.Graph()
        nodes: dict[int, fx.Node] = {}
        arguments: list[torch.Tensor] = []

        def enter(name: int, tensor: torch.Tensor) -> fx.Node:
            arguments.append(tensor)
            return nodes.setdefault(name, graph.placeholder(f"argument_{len(arguments)}"))

        for name, twin in self._given.items():
            enter(name, twin)
        targets = {name: torch.empty_like(value) for name, value in self._expected.items()}
        written_to = {name: enter(-name, target) for name, target in targets.items()}

        def as_node(value: Any) -> Any:
            return self._node(graph, nodes, value) if isinstance(value, torch.Tensor) else value

        for func, args, kwargs, result in self._operations:
            node = graph.call_function(func, *tree_map(as_node, (args, kwargs)))
            if isinstance(result, torch.Tensor):
                nodes[id(result)] = node
            elif isinstance(result, list | tuple):
                for at, part in enumerate(result):
                    if isinstance(part, torch.Tensor):
                        nodes[id(part)] = graph.call_function(getitem, (node, at))
        outputs = tuple(graph.call_function(aten.copy_.default, (target, nodes[name])) for name, target in written_to.items())
        graph.output(outputs)
        return Program(fx.GraphModule(nn.Module(), graph), tuple(arguments)), targets

    def _node(self, graph: fx.Graph, nodes: dict[int, fx.Node], tensor: torch.Tensor) -> fx.Node:
        """The node of a tensor; one that came to be unseen (`tensor.data`) is a view of what was first seen over its memory."""
        node = nodes.get(id(tensor))
        if node is None:
            base = nodes[id(self._made[storage_of(tensor)])]
            node = graph.call_function(aten.as_strided.default, (base, tensor.shape, tensor.stride(), tensor.storage_offset()))
            nodes[id(tensor)] = node
        return node

    def _is_outside(self, tensor: torch.Tensor) -> bool:
        return storage_of(tensor) in self._memory or storage_of(tensor) in self._held

    def _twin(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = storage_of(tensor)
        if storage in self._held:
            return tensor
        if storage not in self._memory:
            original = tensor.untyped_storage()
            self._memory[storage] = (original.clone(), original.clone())  # type: ignore[no-untyped-call]
        used, _ = self._memory[storage]
        twin = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return twin.set_(used, tensor.storage_offset(), tensor.shape, tensor.stride())


def _captured(program: Program, device: torch.device) -> Callable[[], object]:
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))

    def step() -> None:
        program.graph(*program.arguments)

    with CAPTURE_LOCK, torch.cuda.stream(stream):
        step()
        stream.synchronize()
        graph = capture(step, stream, torch.cuda.graph_pool_handle())
        graph.instantiate()
    return graph.replay
