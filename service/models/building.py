"""From a model's configuration, and what its source tells about itself, to a ModelSpec. Pure: nothing is loaded or run here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cachepolicy.buckets import default_sizes
from service.choices import Above, Fill, Rows
from service.config import AxisConfig, InputConfig, ModelConfig
from service.models.place import Place
from service.models.spec import UNNAMED, AxisSpec, InputSpec, ModelSpec, OutputSpec, StateSpec
from service.tensors import Datatype

Variants = tuple[tuple[str, tuple[str, ...]], ...]

DEFAULT_MAX = 64  # of an axis that neither the configuration nor the source limits


@dataclass(frozen=True, slots=True)
class FreeDim:
    """A dimension that the source says may change: a name for it, and the sizes it may take."""

    name: str
    min: int = 1
    max: int | None = None

    def within(self, other: FreeDim) -> FreeDim:
        """The sizes that both allow."""
        maxima = [limit for limit in (self.max, other.max) if limit is not None]
        return FreeDim(self.name, max(self.min, other.min), min(maxima, default=None))


@dataclass(frozen=True, slots=True)
class KnownInput:
    """What the source tells about an input. `exact`: a fixed size is a fact, not just what the examples happened to have."""

    datatype: Datatype
    shape: tuple[int | FreeDim, ...]
    exact: bool


def build_inputs(config: ModelConfig, known: Mapping[str, KnownInput], place: Place) -> tuple[InputSpec, ...]:
    """Merge declared and known inputs, in declared order, then the known ones' order. Raises ConfigError."""
    names = [*config.inputs, *(name for name in known if name not in config.inputs)]
    if not names:
        raise place.at("inputs").error("must be declared (name: {datatype: …, shape: [batch, …]}): the source has no example_inputs")
    specs = []
    for name in names:
        declared, at = config.inputs.get(name, InputConfig()), place.at(f"inputs.{name}")
        datatype, shape = _merge(declared, known.get(name), at, complete=not known)
        specs.append(_input(name, declared, datatype, shape, at))
    axes = axis_names(specs, config.batching.axis)
    return tuple(replace(spec, fill_axis=_fill_axis(spec, axes, config, place.at(f"inputs.{spec.name}"))) for spec in specs)


def check_declared(config: ModelConfig, place: Place) -> None:
    """Raise ConfigError for what the configuration itself tells to be wrong; what the model's source adds is left to the load."""
    for name, declared in config.inputs.items():
        if declared.datatype is not None:
            _input(name, declared, declared.datatype, declared.shape or (), place.at(f"inputs.{name}"))
    for name, axis in config.axes.items():
        at = place.at(f"axes.{name}")
        if not config.may_have(name):
            raise at.error("no input has this axis")
        if axis.max is not None:
            _sizes(axis, axis.max, at)
    build_variants(config, config.inputs, place)
    if all(declared.datatype and declared.shape is not None for declared in config.inputs.values()) and not _has_source(config):
        inputs = build_inputs(config, {}, place)
        axes = build_axes(config, inputs, {}, place)
        outputs = build_outputs(config, axes, place)
        build_spec(config, place, inputs=inputs, axes=axes, outputs=outputs, variants=(), state=())


def _has_source(config: ModelConfig) -> bool:
    """Whether there may be inputs that the configuration does not declare: a function alone brings no examples."""
    return bool(config.program or config.examples) or config.factory.startswith("file:")


def axis_names(inputs: Sequence[InputSpec], batch_axis: str) -> list[str]:
    """Axes in the order of their first use; the batch axis is the first."""
    names = dict.fromkeys(part for spec in inputs for part in spec.shape if isinstance(part, str))
    return sorted(names, key=lambda name: name != batch_axis)


def build_axes(config: ModelConfig, inputs: Sequence[InputSpec], known: Mapping[str, KnownInput], place: Place) -> tuple[AxisSpec, ...]:
    """One axis for each name in the inputs' shapes. Raises ConfigError."""
    names = axis_names(inputs, config.batching.axis)
    if "axis" in config.batching.model_fields_set and config.batching.axis not in names:
        raise place.at("batching.axis").error(f"no input has the axis {config.batching.axis}")
    for name in config.axes:
        if name not in names:
            raise place.at(f"axes.{name}").error("no input has this axis")
    limits = axis_limits(inputs, known)
    return tuple(_axis(name, config, inputs, limits[name].max, place.at(f"axes.{name}")) for name in names)


def axis_limits(inputs: Sequence[InputSpec], known: Mapping[str, KnownInput]) -> dict[str, FreeDim]:
    """The sizes that the source allows for each axis of the inputs."""
    limits = {part: FreeDim(part) for spec in inputs for part in spec.shape if isinstance(part, str)}
    for spec in inputs:
        for ours, theirs in zip(spec.shape, known[spec.name].shape if spec.name in known else (), strict=False):
            if isinstance(ours, str) and isinstance(theirs, FreeDim):
                limits[ours] = limits[ours].within(theirs)
    return limits


def build_outputs(config: ModelConfig, axes: Sequence[AxisSpec], place: Place) -> tuple[OutputSpec, ...]:
    """The declared outputs; none where they are to be inferred. Raises ConfigError."""
    names = {axis.name for axis in axes} | {UNNAMED}
    for name, output in config.outputs.items():
        for part in output.shape:
            if isinstance(part, str) and part not in names:
                raise place.at(f"outputs.{name}.shape").error(f"no input has the axis {part}")
    return tuple(OutputSpec(name, output.datatype, output.shape) for name, output in config.outputs.items())


def build_state(
    config: ModelConfig, inputs: Sequence[InputSpec], buffers: Mapping[str, tuple[int, ...]], place: Place
) -> tuple[StateSpec, ...]:
    """The declared state buffers, checked against the module's. `buffers`: name to shape. Raises ConfigError."""
    by_name = {spec.name: spec for spec in inputs}
    states: list[StateSpec] = []
    for number, declared in enumerate(config.state):
        at = place.at(f"state[{number}]")
        shape = buffers.get(declared.buffer)
        if shape is None:
            raise at.at("buffer").error(f"the model has no buffer {declared.buffer}; it has {', '.join(buffers) or 'none'}")
        index = by_name.get(declared.index_input)
        if index is None:
            raise at.at("index_input").error(f"there is no input {declared.index_input}")
        if index.fill is not None or not _is_integer(index.datatype) or index.shape != (config.batching.axis,):
            raise at.at("index_input").error(f"{index.name} must be an integer input of shape [{config.batching.axis}] that clients send")
        if not shape or shape[0] <= declared.scratch:
            raise at.at("scratch").error(f"must be less than the {shape[0] if shape else 0} slots of {declared.buffer}")
        state = StateSpec(declared.buffer, declared.index_input, declared.scratch, shape[0] - declared.scratch)
        for other in states:
            if other.index_input == state.index_input and (other.slots, other.scratch) != (state.slots, state.scratch):
                raise at.error(f"has other slots than {other.buffer}, which {state.index_input} addresses too")
        states.append(state)
    return tuple(states)


def build_variants(config: ModelConfig, names: Iterable[str], place: Place) -> Variants:
    """The closed sets that requests choose from; `names` are the inputs'. Raises ConfigError."""
    names = frozenset(names)
    for name, values in config.variants.items():
        at = place.at(f"variants.{name}")
        if name in names:
            raise at.error("is the name of an input, too")
        if not values or len(set(values)) != len(values):
            raise at.error("must be a list of different words, at least one")
    return tuple(config.variants.items())


def build_spec(
    config: ModelConfig,
    place: Place,
    *,
    inputs: tuple[InputSpec, ...],
    axes: tuple[AxisSpec, ...],
    outputs: tuple[OutputSpec, ...],
    variants: Variants,
    state: tuple[StateSpec, ...],
) -> ModelSpec:
    """Put the parts together and check what lies between them. Raises ConfigError."""
    batch = config.batching.axis
    for axis in axes:
        if axis.above is Above.SPLIT:
            at = place.at(f"axes.{axis.name}.above")
            if axis.name != batch:
                raise at.error(f"only the batching axis ({batch}) can be split")
            if config.rows is Rows.DEPENDENT:
                raise at.error("rows that depend on each other can't be split")
            lacking = [output.name for output in outputs if batch not in output.shape]
            if lacking:
                raise at.error(f"output {lacking[0]} does not have the axis {batch}")
    return ModelSpec(
        name=config.name,
        version=config.version,
        inputs=inputs,
        outputs=outputs,
        axes=axes,
        rows=config.rows,
        variants=variants,
        state=state,
        phase=config.phase,
        batch_axis=batch,
        max_wait_s=config.batching.max_wait,
        compile=config.compile,
        mode=config.mode,
        tolerance=tuple((datatype, bounds.rtol, bounds.atol) for datatype, bounds in config.tolerance.items()),
        examples=config.examples,
    )


def _merge(declared: InputConfig, known: KnownInput | None, at: Place, *, complete: bool) -> tuple[Datatype, tuple[str | int, ...]]:
    """Datatype and shape of one input. `complete`: the source knows of no input at all, so that the declaration has to be complete."""
    if known is None:
        if not complete and declared.fill is None:
            raise at.error("the model's source has no such input")
        if declared.datatype is None or declared.shape is None:
            raise at.error("datatype and shape must be declared: there are no examples to infer them from")
        return declared.datatype, declared.shape
    if declared.datatype is not None and declared.datatype is not known.datatype:
        raise at.at("datatype").error(f"is {declared.datatype}, the model's source has {known.datatype}")
    if declared.shape is None:
        return known.datatype, tuple(part.name if isinstance(part, FreeDim) else part for part in known.shape)
    if len(declared.shape) != len(known.shape):
        raise at.at("shape").error(f"has {len(declared.shape)} dimensions, the model's source has {len(known.shape)}")
    for position, (ours, theirs) in enumerate(zip(declared.shape, known.shape, strict=True)):
        if isinstance(ours, int) and isinstance(theirs, int) and ours != theirs:
            raise at.at("shape").error(f"dimension {position} is {ours}, the model's source has {theirs}")
        if isinstance(ours, int) and isinstance(theirs, FreeDim) and not known.exact:
            raise at.at("shape").error(f"dimension {position} is {ours}, but changes in the examples")
        if isinstance(ours, str) and isinstance(theirs, int) and known.exact:
            raise at.at("shape").error(f"dimension {position} is fixed to {theirs} in the model's source")
    return known.datatype, declared.shape


def _input(name: str, declared: InputConfig, datatype: Datatype, shape: tuple[str | int, ...], at: Place) -> InputSpec:
    if UNNAMED in shape:
        raise at.at("shape").error(f"an input's dimensions need names or sizes, not {UNNAMED}")
    if declared.fill is Fill.VALID and datatype is not Datatype.BOOL:
        raise at.at("fill").error(f"valid needs datatype BOOL, not {datatype}")
    if declared.fill in (Fill.LENGTH, Fill.POSITION) and not _is_integer(datatype):
        raise at.at("fill").error(f"{declared.fill} needs an integer datatype, not {datatype}")
    bounds = declared.range
    if bounds is not None:
        if not _is_integer(datatype):
            raise at.at("range").error(f"is for integer datatypes, not {datatype}")
        limits = _limits(datatype)
        if bounds[0] < limits[0] or bounds[1] > limits[1]:
            raise at.at("range").error(f"{datatype} holds {limits[0]} … {limits[1]} only")
    pad = declared.pad
    if pad is None:
        pad = bounds[0] if bounds is not None and not bounds[0] <= 0 <= bounds[1] else 0
    elif datatype is Datatype.BOOL:
        if pad not in (0, 1):
            raise at.at("pad").error("must be true or false")
        pad = bool(pad)
    elif _is_integer(datatype):
        low, high = bounds or _limits(datatype)
        if isinstance(pad, bool) or pad != int(pad) or not low <= pad <= high:
            raise at.at("pad").error(f"must be an integer in {low} … {high}, not {pad}")
        pad = int(pad)
    return InputSpec(name, datatype, shape, pad=pad, fill=declared.fill, fill_axis=declared.fill_axis, range=bounds)


def _is_integer(datatype: Datatype) -> bool:
    return datatype.numpy is not None and datatype.numpy.kind in "iu"


def _limits(datatype: Datatype) -> tuple[int, int]:
    info = np.iinfo(str(datatype.numpy))
    return int(info.min), int(info.max)


def _fill_axis(spec: InputSpec, axes: Sequence[str], config: ModelConfig, at: Place) -> str:
    """The axis that a length or position is about: as declared, or the only one it can be."""
    if spec.fill not in (Fill.LENGTH, Fill.POSITION):
        if spec.fill_axis:
            raise at.at("fill_axis").error("is for fill: length and fill: position")
        return ""
    if spec.fill_axis:
        if spec.fill_axis not in axes or (spec.fill is Fill.POSITION and spec.fill_axis not in spec.shape):
            raise at.at("fill_axis").error(f"{spec.fill_axis} is no axis of {'this input' if spec.fill is Fill.POSITION else 'the inputs'}")
        return spec.fill_axis
    within = axes if spec.fill is Fill.LENGTH else [name for name in axes if name in spec.shape]
    candidates = [name for name in within if name != config.batching.axis] or within
    if len(candidates) != 1:
        raise at.at("fill_axis").error(f"must say which axis: {', '.join(candidates) or 'this input has none'}")
    return candidates[0]


def _axis(name: str, config: ModelConfig, inputs: Sequence[InputSpec], limit: int | None, at: Place) -> AxisSpec:
    if all(spec.fill is not None or name not in spec.shape for spec in inputs):
        raise at.error("no input that clients send has this axis, so that its size can't be told")
    declared = config.axes.get(name)
    maximum = (declared.max if declared else None) or limit or DEFAULT_MAX
    if limit is not None and maximum > limit:
        raise at.at("max").error(f"is {maximum}, the model's source allows {limit}")
    return AxisSpec(name, maximum, _sizes(declared, maximum, at), declared.above if declared else Above.REJECT)


def _sizes(declared: AxisConfig | None, maximum: int, at: Place) -> tuple[int, ...]:
    sizes = declared.buckets if declared else None
    if sizes is None:
        return default_sizes(maximum)
    if sizes[-1] > maximum:
        raise at.at("buckets").error(f"{sizes[-1]} is above the axis' maximum, {maximum}")
    return sizes if sizes[-1] == maximum else (*sizes, maximum)
