"""Host memory that a recording reads from and writes to: the tensors of one bucket side by side in one buffer.

Requests' rows are written at their offset, everything that is padding is rewritten each time, and outputs are cut back by axis names.
Values move as bits (unsigned integers of equal size), so every datatype passes unchanged. All that can be known from the spec and
the bucket is worked out once, when the recording is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from service.backends.base import Batch, Outputs, Padding, Part
from service.choices import Fill
from service.models.loaded import TORCH_DTYPES
from service.models.spec import InputSpec, ModelSpec, OutputSpec, StateSpec
from service.tensors import Datatype, HostTensor

Bits = npt.NDArray[np.unsignedinteger]

ALIGNMENT = 256  # bytes; what device kernels want of a tensor's start
UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


def resolve(declared: Sequence[str | int], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A declared shape in numbers. Raises KeyError where it names an axis that has no size."""
    return tuple(part if isinstance(part, int) else sizes[part] for part in declared)


def bits_of(value: float | bool, datatype: Datatype) -> np.unsignedinteger:
    """A value of a datatype as bits."""
    scalar = torch.tensor([value], dtype=TORCH_DTYPES[datatype])
    return scalar.view(UNSIGNED[datatype.itemsize]).numpy()[0]  # type: ignore[no-any-return]


class Packed:
    """Tensors of fixed shapes side by side in one byte buffer; pinned where a device copies from or to it."""

    def __init__(self, specs: Sequence[InputSpec | OutputSpec], sizes: Mapping[str, int], *, pinned: bool = False) -> None:
        self._places: dict[str, tuple[int, Datatype, tuple[int, ...]]] = {}
        end = 0
        for spec in specs:
            shape = resolve(spec.shape, sizes)
            self._places[spec.name] = (end, spec.datatype, shape)
            end += -(-prod(shape) * spec.datatype.itemsize // ALIGNMENT) * ALIGNMENT
        self.nbytes = end
        self.host = torch.zeros(end, dtype=torch.uint8, pin_memory=pinned)

    def views(self, buffer: torch.Tensor) -> dict[str, torch.Tensor]:
        """Typed tensors over a buffer of `nbytes` bytes, the host's own or its copy on a device."""
        return {
            name: buffer[start : start + prod(shape) * datatype.itemsize].view(TORCH_DTYPES[datatype]).view(shape)
            for name, (start, datatype, shape) in self._places.items()
        }

    def bits(self, name: str) -> Bits:
        """A writable view of one tensor in host memory."""
        start, datatype, shape = self._places[name]
        flat = self.host[start : start + prod(shape) * datatype.itemsize].numpy()
        return flat.view(datatype.bits).reshape(shape)


class _Axes:
    """Where a tensor's named axes are, once the batch axis (if it has one) was moved to the front."""

    def __init__(self, declared: Sequence[str | int], batch_axis: str) -> None:
        self.batch = declared.index(batch_axis) if batch_axis in declared else None
        order = list(declared)
        if self.batch is not None:
            order.insert(0, order.pop(self.batch))
        self.named = tuple((at, name) for at, name in enumerate(order) if isinstance(name, str) and name != batch_axis)
        self.rank = len(order)

    def rows_first(self, array: Bits) -> Bits:
        """The same memory with the batch axis at the front."""
        return np.moveaxis(array, self.batch, 0) if self.batch else array

    def as_declared(self, array: Bits) -> Bits:
        """The inverse of `rows_first`."""
        return np.moveaxis(array, 0, self.batch) if self.batch else array

    def at(self, axis: str) -> int:
        """The dimension of a named axis, the batch axis being 0."""
        return next((at for at, name in self.named if name == axis), 0)

    def real(self, shape: Mapping[str, int]) -> tuple[slice, ...]:
        """Index of the elements that a part of this shape fills."""
        index = [slice(None)] * self.rank
        for at, name in self.named:
            index[at] = slice(shape[name])
        return tuple(index)

    def tails(self, shape: Mapping[str, int]) -> Iterable[tuple[slice, ...]]:
        """Indices of the elements beyond the part, disjoint and complete."""
        index = [slice(None)] * self.rank
        for at, name in self.named:
            index[at] = slice(shape[name], None)
            yield tuple(index)
            index[at] = slice(shape[name])


class _Input(ABC):
    """One input's place in the staging memory. Rows come first in `view`."""

    def __init__(self, spec: InputSpec, view: Bits, batch_axis: str) -> None:
        self.name = spec.name
        self.axes = _Axes(spec.shape, batch_axis)
        self.view = self.axes.rows_first(view)
        self.batch_axis = batch_axis

    def write(self, parts: Sequence[Part], repeat: bool) -> None:
        """Write the parts one below the other, then what is left of the bucket."""
        if self.axes.batch is None:
            self.put(self.view, parts[0])
            return
        view, at = self.view, 0
        for part in parts:
            end = at + part.shape[self.batch_axis]
            self.put(view[at:end], part)
            at = end
        if at < len(view):
            self.pad_rows(view[at:], view[at - 1] if repeat else None)

    @abstractmethod
    def put(self, region: Bits, part: Part) -> None:
        """Fill one part's rows: its real elements, and padding beyond them."""

    @abstractmethod
    def pad_rows(self, rows: Bits, last: Bits | None) -> None:
        """Fill padding rows; `last` is the last real row where it is to be repeated."""

    @abstractmethod
    def put_safe(self) -> None:
        """Fill everything with values that any model of this spec can take."""


class _Sent(_Input):
    """An input that clients send."""

    def __init__(self, spec: InputSpec, view: Bits, batch_axis: str) -> None:
        super().__init__(spec, view, batch_axis)
        self.pad = bits_of(spec.pad, spec.datatype)
        safe = spec.pad if spec.range is None else min(max(spec.pad, spec.range[0]), spec.range[1])
        self.safe = bits_of(safe, spec.datatype)

    def put(self, region: Bits, part: Part) -> None:
        bits = self.axes.rows_first(part.inputs[self.name].bits())
        if bits.shape == region.shape:
            region[...] = bits
            return
        for tail in self.axes.tails(part.shape):
            region[tail] = self.pad
        region[self.axes.real(part.shape)] = bits

    def pad_rows(self, rows: Bits, last: Bits | None) -> None:
        rows[...] = self.pad if last is None else last

    def put_safe(self) -> None:
        self.view[...] = self.safe


class _Slots(_Sent):
    """The input that addresses declared state: padding rows never name a live slot."""

    def __init__(self, spec: InputSpec, view: Bits, batch_axis: str, state: StateSpec) -> None:
        super().__init__(spec, view, batch_axis)
        rows = len(self.view) if self.axes.batch is not None else 1
        slots = state.slots + np.arange(rows) % state.scratch
        self.scratch = slots.astype(spec.datatype.bits).reshape((rows,) + (1,) * (self.view.ndim - 1))

    def pad_rows(self, rows: Bits, last: Bits | None) -> None:
        rows[...] = self.scratch[: len(rows)]

    def put_safe(self) -> None:
        self.view[...] = self.scratch


class _Filled(_Input):
    """An input that the worker writes: which elements are real."""

    def __init__(self, spec: InputSpec, view: Bits, batch_axis: str, sizes: Mapping[str, int]) -> None:
        super().__init__(spec, view, batch_axis)
        self.spec = spec
        self.sizes = sizes

    def put(self, region: Bits, part: Part) -> None:
        write_fill(self.spec, self.axes, region, part.shape)

    def pad_rows(self, rows: Bits, last: Bits | None) -> None:
        rows[...] = 0 if last is None else last

    def put_safe(self) -> None:
        write_fill(self.spec, self.axes, self.view, self.sizes)


def write_fill(spec: InputSpec, axes: _Axes, region: Bits, shape: Mapping[str, int]) -> None:
    """Write what a part's real sizes say into its rows: `valid` marks, the `length`, or clamped `position`s."""
    match spec.fill:
        case Fill.VALID:
            region[...] = 0
            region[axes.real(shape)] = 1
        case Fill.LENGTH:
            region[...] = bits_of(shape[spec.fill_axis], spec.datatype)
        case Fill.POSITION:
            at = axes.at(spec.fill_axis)
            index = np.minimum(np.arange(region.shape[at]), shape[spec.fill_axis] - 1).astype(spec.datatype.bits)
            region[...] = index.reshape((-1,) + (1,) * (region.ndim - 1 - at))
        case None:
            raise ValueError(f"input {spec.name} is not filled")


def filled(spec: InputSpec, shape: Mapping[str, int], batch_axis: str) -> Bits:
    """A filled input at exactly a part's own size, as bits in the declared order."""
    array = np.empty(resolve(spec.shape, shape), spec.datatype.bits)
    axes = _Axes(spec.shape, batch_axis)
    write_fill(spec, axes, axes.rows_first(array), shape)
    return array


class InputStaging(Packed):
    """The inputs of one bucket."""

    def __init__(self, spec: ModelSpec, sizes: Mapping[str, int], *, pinned: bool = False) -> None:
        super().__init__(spec.inputs, sizes, pinned=pinned)
        states = {state.index_input: state for state in spec.state}
        self._inputs: list[_Input] = []
        for entry in spec.inputs:
            view = self.bits(entry.name)
            if entry.fill is not None:
                self._inputs.append(_Filled(entry, view, spec.batch_axis, sizes))
            elif entry.name in states:
                self._inputs.append(_Slots(entry, view, spec.batch_axis, states[entry.name]))
            else:
                self._inputs.append(_Sent(entry, view, spec.batch_axis))

    def write(self, batch: Batch, padding: Padding = Padding.VALUE) -> None:
        """Write a batch and rewrite all padding: nothing of an earlier batch is left."""
        parts, repeat = batch.parts, padding is Padding.REPEAT
        for entry in self._inputs:
            entry.write(parts, repeat)

    def write_safe(self) -> None:
        """Values for warm-up and capture: pad values within the declared range, scratch slots, everything marked real."""
        for entry in self._inputs:
            entry.put_safe()


class OutputCutter:
    """Cuts one output back to its parts, by axis names."""

    def __init__(self, spec: OutputSpec, batch_axis: str) -> None:
        self.name = spec.name
        self.datatype = spec.datatype
        self.axes = _Axes(spec.shape, batch_axis)
        self.batch_axis = batch_axis

    def cut(self, rows_first: Bits, at: int, shape: Mapping[str, int]) -> HostTensor:
        """The elements of a part whose rows begin at `at`, in memory of their own."""
        if self.axes.batch is not None:
            rows_first = rows_first[at : at + shape[self.batch_axis]]
        if self.axes.named:
            rows_first = rows_first[self.axes.real(shape)]
        array = self.axes.as_declared(rows_first)
        return HostTensor(self.datatype, array.shape, array.tobytes())


class OutputStaging(Packed):
    """The outputs of one bucket."""

    def __init__(self, spec: ModelSpec, sizes: Mapping[str, int], *, pinned: bool = False) -> None:
        super().__init__(spec.outputs, sizes, pinned=pinned)
        self._batch_axis = spec.batch_axis
        cutters = [OutputCutter(entry, spec.batch_axis) for entry in spec.outputs]
        self._outputs = [(cutter, cutter.axes.rows_first(self.bits(cutter.name))) for cutter in cutters]

    def cut(self, batch: Batch) -> list[Outputs]:
        """Each part's outputs, in memory of their own."""
        result, at = [], 0
        for part in batch.parts:
            shape = part.shape
            result.append({cutter.name: cutter.cut(view, at, shape) for cutter, view in self._outputs})
            at += shape.get(self._batch_axis, 0)
        return result
