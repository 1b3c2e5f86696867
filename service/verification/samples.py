"""Values that a proof may use.

Floats of several magnitudes can be made up. An integer is often an index, and an invented one kills a CUDA process: integers and bools
come as whole rows from the model's examples, from accepted requests, or from the range that the model declares.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import torch

from service.errors import NotYetProvable, ends_the_program, told
from service.models.loaded import LoadedModel
from service.models.spec import InputSpec, ModelSpec, Shape
from service.models.values import concrete
from service.tensors import Datatype, HostTensor

Inputs = dict[str, HostTensor]
Bits = npt.NDArray[np.unsignedinteger]

_UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


class Kind(StrEnum):
    """What is peculiar about a sample. Rows that agree or crowd together show what a batch statistic or a routing capacity hides."""

    NATURAL = "natural"  # examples as they are
    SMALL = "small"
    LARGE = "large"
    SAME = "same"  # all rows equal
    SKEWED = "skewed"  # positive, rows of very different size, half of the integer rows equal
    SPECIAL = "special"  # zeros, infinities and NaN in single rows
    HUGE = "huge"


ORDINARY = (Kind.NATURAL, Kind.SAME, Kind.LARGE, Kind.SKEWED, Kind.SMALL)
_MAGNITUDES = {Kind.SMALL: 1e-2, Kind.LARGE: 1e2, Kind.HUGE: 1e30}
_LARGEST_FP16 = 6e4
_SKEW = (1e2, 1.0, 1e-2)
_CONSTANTS = (1.0, 100.0, -100.0)  # beyond what a model may compare with, on both sides


class Accepted:
    """The last few accepted requests of each model, so that integers without declared range have a source. Safe from any thread."""

    def __init__(self, requests: int = 8, request_bytes: int = 1 << 20) -> None:
        self._requests = requests
        self._request_bytes = request_bytes
        self._inputs: dict[str, deque[Mapping[str, HostTensor]]] = {}
        self._lock = threading.Lock()

    def remember(self, model: str, inputs: Mapping[str, HostTensor]) -> None:
        """Keep a request's inputs, unless they are large. Constant time; nothing is copied."""
        if sum(tensor.nbytes for tensor in inputs.values()) > self._request_bytes:
            return
        with self._lock:
            self._inputs.setdefault(model, deque(maxlen=self._requests)).append(inputs)

    def forget(self, model: str) -> None:
        """The model is gone."""
        with self._lock:
            self._inputs.pop(model, None)

    def of(self, model: str) -> list[Mapping[str, HostTensor]]:
        """What is kept of a model, oldest first."""
        with self._lock:
            return list(self._inputs.get(model, ()))


class Sampler:
    """Draws inputs for one model. Raises NotYetProvable where integers have no source.

    `lock_floats`: the model turns floats into integers, so that they too come from examples only.
    """

    def __init__(self, model: LoadedModel, accepted: Sequence[Mapping[str, HostTensor]] = (), *, lock_floats: bool = False) -> None:
        self._model = model
        self._spec = model.spec
        self._slots = {state.index_input: state for state in model.spec.state}
        self._from_requests = list(accepted)
        self._lock_floats = lock_floats and (model.examples is not None or bool(accepted))
        if model.examples is None and not accepted:
            lacking = [spec.name for spec in model.spec.requested_inputs if self._needs_source(spec)]
            if lacking:
                problem = f"integer input {lacking[0]} has no source of values: declare its range, give examples, or wait for a request"
                raise NotYetProvable(problem)

    def draw(self, shape: Shape, kind: Kind, seed: int) -> Inputs:
        """Inputs at a shape. State slots are 0, 1, 2, … by row: the caller replaces them."""
        rng = np.random.default_rng([seed, list(Kind).index(kind)])
        rows = shape.get(self._spec.batch_axis, 1)
        order = _row_order(kind, rows)
        base = self._base(shape, seed, rng)
        drawn: Inputs = {}
        for spec in self._spec.requested_inputs:
            axis = spec.shape.index(self._spec.batch_axis) if self._spec.batch_axis in spec.shape else None
            bits = base[spec.name]
            if spec.name in self._slots:
                bits = np.arange(rows).astype(spec.datatype.bits)
            elif spec.datatype.is_float and self._made_up_floats(kind):
                bits = encode(_floats(rng, concrete(spec.shape, shape), axis, kind), spec.datatype)
            elif axis is not None:
                bits = np.take(bits, order, axis=axis)
            drawn[spec.name] = HostTensor.of(spec.datatype, bits)
        return crop(self._spec, drawn, shape)

    def blended(self, inputs: Inputs, row: int, seed: int) -> Inputs:
        """Rows that share about half of their elements with this one, each at its own place."""
        rng = np.random.default_rng([seed, 1])

        def blend(bits: Bits, own: Bits) -> Bits:
            return np.where(rng.integers(0, 2, bits.shape, dtype=np.uint8).astype(bool), own, bits)

        return self._by_rows(inputs, row, lambda _, bits, own: blend(bits, own))

    def pooled(self, inputs: Inputs, row: int, seed: int) -> Inputs:
        """Rows all of whose elements occur in this one, wherever; as `blended` where elements have to stay in their places."""
        rng = np.random.default_rng([seed, 2])

        def pool(spec: InputSpec, bits: Bits, own: Bits) -> Bits:
            if self._free(spec) and own.size > 1:
                return rng.choice(own.reshape(-1), bits.shape)
            return np.where(rng.integers(0, 2, bits.shape, dtype=np.uint8).astype(bool), own, bits)

        return self._by_rows(inputs, row, pool)

    def padlike(self, inputs: Inputs, seed: int) -> Inputs:
        """The same with a half or a quarter of the elements equal to what padding is filled with."""
        rng = np.random.default_rng([seed, 3])
        share = 0.25 if seed % 2 else 0.5
        pads = self.constants(inputs)[0]
        mixed: Inputs = {}
        for name, tensor in inputs.items():
            bits, free = tensor.bits(), self._free(self._named(name))
            chosen = rng.random(bits.shape) < share
            mixed[name] = HostTensor.of(tensor.datatype, np.where(chosen, pads[name].bits(), bits) if free else bits)
        return mixed

    def constants(self, inputs: Inputs) -> list[Inputs]:
        """Inputs of the same shapes, every element equal: first to what padding is filled with, then to other values.

        Integers without declared range have no other values; slots stay as they are.
        """
        found = []
        for value in (None, *_CONSTANTS):
            filled: Inputs = {}
            for name, tensor in inputs.items():
                spec = self._named(name)
                filled[name] = tensor if name in self._slots else self._filled(spec, tensor, value)
            found.append(filled)
        return found

    def _filled(self, spec: InputSpec, tensor: HostTensor, value: float | None) -> HostTensor:
        low, high = spec.range or (spec.pad, spec.pad)
        if spec.datatype.is_float and (value is None or self._free(spec)):
            return HostTensor.of(spec.datatype, encode(np.full(tensor.shape, spec.pad if value is None else value), spec.datatype))
        ends = (low, high) if spec.range is not None and value is not None else (min(max(spec.pad, low), high),) * 2
        number = ends[value is not None and value > 0]
        return HostTensor.of(spec.datatype, np.full(tensor.shape, int(number)).astype(spec.datatype.bits))

    def _by_rows(self, inputs: Inputs, row: int, make: Callable[[InputSpec, Bits, Bits], Bits]) -> Inputs:
        """Every row but this one made anew from what it is and what this one is."""
        made: Inputs = {}
        for name, tensor in inputs.items():
            spec = self._named(name)
            if name in self._slots or self._spec.batch_axis not in spec.shape:
                made[name] = tensor
                continue
            axis = spec.shape.index(self._spec.batch_axis)
            bits = np.moveaxis(tensor.bits(), axis, 0)
            own = bits[row]
            fresh = np.ascontiguousarray(make(spec, bits, own)).astype(bits.dtype)
            fresh[row] = own
            made[name] = HostTensor.of(tensor.datatype, np.moveaxis(fresh, 0, axis))
        return made

    def _free(self, spec: InputSpec) -> bool:
        """Whether an element may have any value that occurs anywhere: else a wrong index could end a CUDA process."""
        if self._model.device.type == "cpu" or spec.datatype is Datatype.BOOL:
            return True
        return not self._lock_floats if spec.datatype.is_float else spec.range is not None

    def _named(self, name: str) -> InputSpec:
        return next(spec for spec in self._spec.requested_inputs if spec.name == name)

    def safe(self, shape: Shape) -> Inputs:
        """What a recording warms up with: pad values within their range; slots as in `draw`."""
        filled: Inputs = {}
        for spec in self._spec.requested_inputs:
            if spec.name in self._slots:
                filled[spec.name] = HostTensor.of(spec.datatype, np.arange(shape[self._spec.batch_axis]).astype(spec.datatype.bits))
                continue
            low, high = spec.range or (spec.pad, spec.pad)
            pad = np.full(concrete(spec.shape, shape), min(max(spec.pad, low), high))
            is_float = spec.datatype.is_float
            filled[spec.name] = HostTensor.of(spec.datatype, encode(pad, spec.datatype) if is_float else pad.astype(spec.datatype.bits))
        return filled

    def _made_up_floats(self, kind: Kind) -> bool:
        if self._lock_floats or kind is Kind.SAME:
            return False
        return kind is not Kind.NATURAL or (self._model.examples is None and not self._from_requests)

    def _needs_source(self, spec: InputSpec) -> bool:
        return not spec.datatype.is_float and spec.datatype is not Datatype.BOOL and spec.range is None and spec.name not in self._slots

    def _base(self, shape: Shape, seed: int, rng: np.random.Generator) -> dict[str, Bits]:
        """Whole rows: of the model's examples, else of accepted requests, else made up."""
        rows = shape.get(self._spec.batch_axis, 1)
        if self._model.examples is not None:
            try:
                found = self._model.examples(rows, seed)
            except BaseException as error:
                if ends_the_program(error):
                    raise
                raise NotYetProvable(f"the model's examples raised {told(error)}") from error
            given = {name: _bits(tensor) for name, tensor in found.items()}
        elif self._from_requests:
            request = self._from_requests[seed % len(self._from_requests)]
            given = {name: tensor.bits() for name, tensor in request.items()}
        else:
            return {spec.name: self._made_up(spec, concrete(spec.shape, shape), rng) for spec in self._spec.requested_inputs}
        return {spec.name: _fit(given[spec.name], spec.shape, shape) for spec in self._spec.requested_inputs}

    def _made_up(self, spec: InputSpec, shape: tuple[int, ...], rng: np.random.Generator) -> Bits:
        if spec.datatype.is_float:
            return encode(rng.standard_normal(shape), spec.datatype)
        if spec.datatype is Datatype.BOOL:
            return rng.integers(0, 2, shape).astype(np.uint8)
        low, high = spec.range or (0, 0)
        signed = np.uint64 if high > np.iinfo(np.int64).max else np.int64
        return rng.integers(low, high, shape, dtype=signed, endpoint=True).astype(spec.datatype.bits)


def encode(array: npt.NDArray[np.floating], datatype: Datatype) -> Bits:
    """Floats as bits of a float datatype, rounded to nearest; magnitudes stay within what FP16 holds."""
    if datatype is Datatype.FP16:
        array = np.clip(array, -_LARGEST_FP16, _LARGEST_FP16) if np.isfinite(array).all() else array
    if datatype.numpy is not None:
        return np.ascontiguousarray(array.astype(datatype.numpy)).view(datatype.bits)
    wide = np.ascontiguousarray(array.astype(np.float32)).view(np.uint32)
    return ((wide + np.uint32(0x7FFF) + ((wide >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def crop(spec: ModelSpec, inputs: Mapping[str, HostTensor], shape: Shape) -> Inputs:
    """The first elements of each axis. Integers that say a size stay within the smaller one."""
    cut: Inputs = {}
    for name, tensor in inputs.items():
        declared = next(entry for entry in spec.inputs if entry.name == name)
        index = tuple(slice(shape[part]) if isinstance(part, str) else slice(None) for part in declared.shape)
        bits = tensor.bits()[index]
        limit = _size_limit(declared, spec, shape)
        if limit is not None:
            bits = np.minimum(bits.astype(np.uint64), np.uint64(limit)).astype(declared.datatype.bits)
        cut[name] = HostTensor.of(declared.datatype, bits)
    return cut


def take_rows(spec: ModelSpec, inputs: Mapping[str, HostTensor], rows: Sequence[int]) -> Inputs:
    """These rows in this order; inputs without the batch axis stay as they are."""
    taken: Inputs = {}
    for name, tensor in inputs.items():
        declared = next(entry for entry in spec.inputs if entry.name == name)
        if spec.batch_axis in declared.shape:
            taken[name] = rows_of(tensor, declared.shape.index(spec.batch_axis), rows)
        else:
            taken[name] = tensor
    return taken


def with_rows(spec: ModelSpec, inputs: Mapping[str, HostTensor], others: Mapping[str, HostTensor], rows: Sequence[int]) -> Inputs:
    """Inputs with these rows taken from others."""
    mixed: Inputs = {}
    for entry in spec.requested_inputs:
        if spec.batch_axis in entry.shape:
            axis = entry.shape.index(spec.batch_axis)
            bits = np.moveaxis(inputs[entry.name].bits().copy(), axis, 0)
            bits[list(rows)] = np.moveaxis(others[entry.name].bits(), axis, 0)[list(rows)]
            mixed[entry.name] = HostTensor.of(entry.datatype, np.moveaxis(bits, 0, axis))
        else:
            mixed[entry.name] = others[entry.name]
    return mixed


def first_rows(spec: ModelSpec, outputs: Mapping[str, HostTensor]) -> list[HostTensor]:
    """The first row of each output that has rows, and all of the others."""
    return [
        rows_of(outputs[entry.name], entry.shape.index(spec.batch_axis), [0]) if spec.batch_axis in entry.shape else outputs[entry.name]
        for entry in spec.outputs
    ]


def rows_of(tensor: HostTensor, axis: int, rows: Sequence[int]) -> HostTensor:
    """These rows of one tensor, `axis` being theirs."""
    return HostTensor.of(tensor.datatype, np.take(tensor.bits(), rows, axis=axis))


def _row_order(kind: Kind, rows: int) -> npt.NDArray[np.intp]:
    order = np.arange(rows)
    if kind is Kind.SAME:
        order[:] = 0
    elif kind is Kind.SKEWED:
        order[::2] = 0
    return order


def _floats(rng: np.random.Generator, shape: tuple[int, ...], axis: int | None, kind: Kind) -> npt.NDArray[np.floating]:
    array = rng.standard_normal(shape) * _MAGNITUDES.get(kind, 1.0)
    if kind is Kind.SKEWED:
        array = np.abs(array)
    if axis is None or array.ndim == 0:
        return array
    rows = np.moveaxis(array, axis, 0)
    if kind is Kind.SKEWED:
        for at in range(len(rows)):
            rows[at] *= _SKEW[at % len(_SKEW)]
    elif kind is Kind.SPECIAL:
        rows[0] = 0.0
        for at, value in ((len(rows) // 2, np.inf), (len(rows) - 1, np.nan)) + (((1, -np.inf),) if len(rows) > 4 else ()):
            rows[(at,) + (0,) * (rows.ndim - 1)] = value
    return array


def _fit(bits: Bits, declared: Sequence[str | int], shape: Shape) -> Bits:
    """Whole rows cut or repeated to a shape."""
    for axis, part in enumerate(declared):
        if isinstance(part, str) and bits.shape[axis] != shape[part]:
            bits = np.take(bits, np.arange(shape[part]) % bits.shape[axis], axis=axis)
    return bits


def _size_limit(declared: InputSpec, spec: ModelSpec, shape: Shape) -> int | None:
    """The largest value that an integer whose range ends like an axis (a length, a position) may have at this shape."""
    if declared.range is None or declared.range[0] < 0:
        return None
    low, high = declared.range
    for axis in spec.axes:
        if axis.name != spec.batch_axis and high in (axis.max, axis.max - 1):
            return max(low, high - axis.max + shape[axis.name])
    return None


def _bits(tensor: torch.Tensor) -> Bits:
    array: Bits = tensor.detach().cpu().contiguous().view(_UNSIGNED[tensor.element_size()]).numpy()
    return array
