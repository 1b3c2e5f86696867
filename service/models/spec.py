"""What a model takes and gives, by named axes; and the check of a request against it. Pure: no torch, nothing allocated.

Inputs and outputs are declared as shapes of axis names and fixed sizes (`[batch, seq, 64]`). Buckets exist per axis, and outputs are
cut back by the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from cachepolicy.buckets import BucketLadder
from service.choices import Above, Compile, Fill, Phase, Rows
from service.errors import BadInput
from service.messages import GraphMode, Parameter
from service.tensors import Datatype, HostTensor

MAX_DIMENSION = 2**40  # beyond any tensor; keeps products of sizes far from overflow

UNNAMED = "?"  # an output's dimension whose size no axis tells: such an output comes as it is and can't be cut back

Shape = dict[str, int]
Variant = tuple[tuple[str, str], ...]


def variant_text(variant: Variant) -> str:
    """As people and labels have it: "adapter=legal,tone=calm"."""
    return ",".join(f"{name}={value}" for name, value in variant)


@dataclass(frozen=True, slots=True)
class AxisSpec:
    """A dynamic axis: its maximum is always the last of its bucket sizes."""

    name: str
    max: int
    sizes: tuple[int, ...]
    above: Above = Above.REJECT


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input. `pad` fills the padded elements; `range` (inclusive) is checked on every request."""

    name: str
    datatype: Datatype
    shape: tuple[str | int, ...]
    pad: float | int | bool = 0
    fill: Fill | None = None
    fill_axis: str = ""
    range: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One output, in the order of the model's results."""

    name: str
    datatype: Datatype
    shape: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A buffer of the model that a request may change, addressed by slots along dimension 0.

    The last `scratch` slots belong to padding rows, warm-up and verification; requests may name slots 0 … slots-1 only.
    """

    buffer: str
    index_input: str
    scratch: int
    slots: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything the worker must know about a model except its code and weights."""

    name: str
    version: str
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    axes: tuple[AxisSpec, ...]
    rows: Rows = Rows.AUTO
    variants: tuple[tuple[str, tuple[str, ...]], ...] = ()
    state: tuple[StateSpec, ...] = ()
    phase: Phase = Phase.ANY
    batch_axis: str = "batch"
    max_wait_s: float = 0.002
    compile: Compile = Compile.NONE
    mode: GraphMode = GraphMode.AUTO
    tolerance: tuple[tuple[Datatype, float, float], ...] = ()  # datatype, rtol, atol
    examples: str = ""
    _by_name: dict[str, InputSpec] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._by_name.update({spec.name: spec for spec in self.inputs})

    @property
    def ladder(self) -> BucketLadder:
        """The grid of bucket sizes."""
        return BucketLadder(tuple((axis.name, axis.sizes) for axis in self.axes))

    @property
    def requested_inputs(self) -> tuple[InputSpec, ...]:
        """The inputs a client sends: all but those the worker fills."""
        return tuple(spec for spec in self.inputs if spec.fill is None)

    def axis(self, name: str) -> AxisSpec | None:
        """The axis of this name."""
        return next((axis for axis in self.axes if axis.name == name), None)

    def all_variants(self) -> tuple[Variant, ...]:
        """Every combination of the closed sets; one empty variant where there are none."""
        names = [name for name, _ in self.variants]
        return tuple(tuple(zip(names, values, strict=True)) for values in product(*(values for _, values in self.variants)))

    def variant_of(self, parameters: Mapping[str, Parameter]) -> Variant:
        """The variant that request parameters choose; a left-out choice takes the set's first value. Raises BadInput.

        Where there are variants, a parameter that names none of their sets is an error: a misspelt one must not get the first value.
        """
        if not self.variants:
            return ()
        known = [name for name, _ in self.variants]
        for name in parameters:
            if name not in known:
                raise BadInput("", f"parameter {name!r}: unknown; {self.name} takes {', '.join(known)}")
        chosen = []
        for name, values in self.variants:
            value = str(parameters.get(name, values[0]))
            if value not in values:
                raise BadInput("", f"parameter {name!r}: {value!r} is not one of {', '.join(values)}")
            chosen.append((name, value))
        return tuple(chosen)

    def check(self, inputs: Mapping[str, HostTensor]) -> Shape:
        """Check a request and return its size per axis. Raises BadInput, naming the input, before anything is allocated.

        An axis above its maximum passes here unless its rule is `reject`; splitting and eager runs are the worker's.
        """
        for name in inputs:
            known = self._by_name.get(name)
            if known is None:
                raise BadInput(name, f"unknown; {self.name} takes {', '.join(s.name for s in self.requested_inputs)}")
            if known.fill is not None:
                raise BadInput(name, "is filled by the worker and can't be sent")
        shape: Shape = {}
        for spec in self.inputs:
            if spec.fill is not None:
                continue
            tensor = inputs.get(spec.name)
            if tensor is None:
                raise BadInput(spec.name, "missing")
            self._check_tensor(spec, tensor, shape)
        for axis in self.axes:
            size = shape.get(axis.name, 0)
            if size > axis.max and axis.above is Above.REJECT:
                raise BadInput(self._input_with(axis.name), f"axis {axis.name} is {size}, above its maximum {axis.max}")
        for spec in self.inputs:  # values last: only when all sizes are known to be sound
            if spec.fill is None:
                self._check_values(spec, inputs[spec.name])
        for state in self.state:
            self._check_slots(state, inputs[state.index_input])
        return shape

    def _check_tensor(self, spec: InputSpec, tensor: HostTensor, shape: Shape) -> None:
        name = spec.name
        if tensor.datatype is not spec.datatype:
            raise BadInput(name, f"datatype is {tensor.datatype}, expected {spec.datatype}")
        if len(tensor.shape) != len(spec.shape):
            raise BadInput(name, f"rank is {len(tensor.shape)}, expected {len(spec.shape)} ({_show(spec.shape)})")
        for position, (size, declared) in enumerate(zip(tensor.shape, spec.shape, strict=True)):
            if not 0 < size <= MAX_DIMENSION:
                raise BadInput(name, f"size {size} of dimension {position} is out of range")
            if isinstance(declared, int):
                if size != declared:
                    raise BadInput(name, f"size of dimension {position} is {size}, expected {declared}")
            elif shape.setdefault(declared, size) != size:
                raise BadInput(name, f"axis {declared} is {size} here, {shape[declared]} in another input")
        if len(tensor.data) != tensor.nbytes:
            raise BadInput(name, f"has {len(tensor.data)} bytes, shape and datatype need {tensor.nbytes}")

    def _check_values(self, spec: InputSpec, tensor: HostTensor) -> None:
        if spec.datatype is Datatype.BOOL:
            if tensor.bits().max(initial=0) > 1:
                raise BadInput(spec.name, "a BOOL byte is neither 0 nor 1")
        elif spec.range is not None:
            values = tensor.array()
            low, high = spec.range
            if values.min() < low or values.max() > high:
                raise BadInput(spec.name, f"values must lie in {low} … {high}")

    def _check_slots(self, state: StateSpec, tensor: HostTensor) -> None:
        values = tensor.array().reshape(-1)
        if values.min() < 0 or values.max() >= state.slots:
            raise BadInput(state.index_input, f"slots must lie in 0 … {state.slots - 1}")
        if len(np.unique(values)) != len(values):
            raise BadInput(state.index_input, "names one slot twice")

    def _input_with(self, axis: str) -> str:
        return next((spec.name for spec in self.inputs if spec.fill is None and axis in spec.shape), "")


def _show(shape: tuple[str | int, ...]) -> str:
    return "[" + ", ".join(str(part) for part in shape) + "]"
