"""Running a throw-away instance of a model at a few shapes, to infer its outputs or to check those that are declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from service.models.building import FreeDim, KnownInput
from service.models.loaded import DATATYPES, ExampleInputs, name_outputs
from service.models.place import Place
from service.models.spec import UNNAMED, AxisSpec, InputSpec, OutputSpec, Shape, StateSpec, Variant
from service.models.values import filled, made_up


@dataclass(frozen=True, slots=True)
class Probe:
    """One trial run: the inputs on the CPU, and their size per axis."""

    inputs: dict[str, Tensor]
    sizes: Shape


def known_from_examples(examples: ExampleInputs, batch_axis: str, batches: tuple[int, int], place: Place) -> dict[str, KnownInput]:
    """What two example batches of different size tell about the inputs. Raises ConfigError."""
    with place.blamed("example_inputs"):
        first, second = examples(batches[0], 0), examples(batches[1], 1)
    if set(first) != set(second):
        raise place.error(f"example_inputs gave {sorted(first)} at one batch size and {sorted(second)} at another")
    known = {}
    for name, tensor in first.items():
        at = place.at(f"inputs.{name}")
        datatype = DATATYPES.get(tensor.dtype)
        if datatype is None or second[name].dtype is not tensor.dtype:
            raise at.error(f"examples have dtypes {tensor.dtype} and {second[name].dtype}, which can't be served")
        sizes = list(zip(tensor.shape, second[name].shape, strict=False))
        if tensor.dim() != second[name].dim() or any(a != b and (a, b) != batches for a, b in sizes):
            raise at.error(f"examples have shapes {list(tensor.shape)} and {list(second[name].shape)}: only the batch may change")
        shape = tuple(FreeDim(batch_axis) if a != b else a for a, b in sizes)
        known[name] = KnownInput(datatype, shape, exact=False)
    return known


def probes(
    inputs: Sequence[InputSpec],
    axes: Sequence[AxisSpec],
    state: Sequence[StateSpec],
    *,
    batch_axis: str,
    minima: Mapping[str, int],
    examples: ExampleInputs | None,
    place: Place,
) -> list[Probe]:
    """Four runs at two shapes, so that sizes which follow an axis can be told from those which follow the values."""
    maxima = {axis.name: axis.max for axis in axes}
    if examples is not None:
        small, large = batch_sizes(maxima.get(batch_axis, 3), minima.get(batch_axis, 1))
        with place.blamed("example_inputs"):
            found = [dict(examples(batch, seed)) for seed, batch in enumerate((small, large, small, large))]
        return [_measured(inputs, tensors, place) for tensors in found]
    shapes: list[Shape] = [{}, {}]
    for number, (name, maximum) in enumerate(maxima.items()):
        # Another difference for each axis, so that they can be told apart.
        wanted = batch_sizes(maximum, minima[name]) if name == batch_axis else _sizes(maximum, minima[name], 3 + number, 3 + number)
        for shape, size in zip(shapes, wanted, strict=True):
            shape[name] = size
    return [Probe(made_up(inputs, state, shapes[seed % 2], seed), shapes[seed % 2]) for seed in range(4)]


def batch_sizes(maximum: int, minimum: int) -> tuple[int, int]:
    """Two different batch sizes where the limits allow it."""
    return _sizes(maximum, minimum, 2, 1)


def _sizes(maximum: int, minimum: int, small: int, step: int) -> tuple[int, int]:
    small = max(minimum, min(small, maximum - step), 1)
    return small, min(small + step, maximum)


def run(module: nn.Module, probe: Probe, variant: Variant, device: torch.device, place: Place) -> object:
    """The model's own result for a probe. Raises ConfigError with whatever the model raised."""
    shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in probe.inputs.items())
    with place.blamed(f"a trial run with {shapes}"), torch.no_grad():
        return module(**{name: tensor.to(device) for name, tensor in probe.inputs.items()}, **dict(variant))


def infer_outputs(sizes: Sequence[Shape], results: Sequence[object], place: Place) -> tuple[OutputSpec, ...]:
    """Outputs by name, their dimensions by the axes whose sizes they followed in all runs. Raises ConfigError."""
    runs = [_tensors(result, None, place) for result in results]
    first = runs[0]
    if any(list(outputs) != list(first) for outputs in runs):
        raise place.error(f"outputs differ between runs: {', '.join(first)} and {', '.join(runs[1])}")
    specs = []
    for name, tensor in first.items():
        at = place.at(f"outputs.{name}")
        seen = [outputs[name] for outputs in runs]
        if tensor.dtype not in DATATYPES or any(t.dtype is not tensor.dtype or t.dim() != tensor.dim() for t in seen):
            raise at.error(f"dtypes {[str(t.dtype) for t in seen]} of shapes {[list(t.shape) for t in seen]} can't be served")
        shape = tuple(_dimension(sizes, [t.shape[d] for t in seen], at) for d in range(tensor.dim()))
        specs.append(OutputSpec(name, DATATYPES[tensor.dtype], shape))
    return tuple(specs)


def check_outputs(declared: Sequence[OutputSpec], sizes: Shape, result: object, place: Place) -> None:
    """Compare one run's outputs with the declared ones. Raises ConfigError."""
    found = _tensors(result, [output.name for output in declared], place)
    for output in declared:
        at, tensor = place.at(f"outputs.{output.name}"), found[output.name]
        datatype = DATATYPES.get(tensor.dtype)
        if datatype is not output.datatype:
            raise at.at("datatype").error(f"is {output.datatype}, the model gives {datatype or tensor.dtype}")
        expected = [sizes.get(part) if isinstance(part, str) else part for part in output.shape]
        if len(expected) != tensor.dim() or any(e not in (None, s) for e, s in zip(expected, tensor.shape, strict=True)):
            declared_shape = ", ".join(str(part) for part in output.shape)
            raise at.at("shape").error(f"is [{declared_shape}], the model gives {list(tensor.shape)} for {sizes}")


def _dimension(sizes: Sequence[Shape], seen: list[int], at: Place) -> str | int:
    following = [axis for axis in sizes[0] if [shape[axis] for shape in sizes] == seen]
    varied = [axis for axis in following if len(set(seen)) > 1]
    if varied:
        return varied[0]
    if len(set(seen)) > 1:
        return UNNAMED
    if following and seen[0] != 1:
        raise at.error(f"must be declared: the examples show one size of {following[0]} only, {seen[0]}, which an output has, too")
    return following[0] if following else seen[0]


def _tensors(result: object, names: list[str] | None, place: Place) -> dict[str, Tensor]:
    try:
        return name_outputs(result, names)
    except ValueError as error:
        raise place.at("outputs").error(str(error)) from None


def _measured(inputs: Sequence[InputSpec], tensors: Mapping[str, Tensor], place: Place) -> Probe:
    """Find the size per axis of example inputs, and add what the worker fills. Raises ConfigError."""
    sizes: Shape = {}
    values: dict[str, Tensor] = {}
    unknown = [name for name in tensors if all(spec.name != name for spec in inputs)]
    if unknown:
        raise place.at(f"inputs.{unknown[0]}").error("the examples have this input, the declaration does not")
    for spec in inputs:
        tensor = tensors.get(spec.name)
        if tensor is None:
            continue
        for part, size in zip(spec.shape, tensor.shape, strict=True):
            expected = sizes.setdefault(part, size) if isinstance(part, str) else part
            if expected != size:
                raise place.at(f"inputs.{spec.name}.shape").error(f"examples have {list(tensor.shape)}, where {part} is {expected}")
        values[spec.name] = tensor
    for spec in inputs:
        if spec.name not in values:
            values[spec.name] = filled(spec, sizes)
    return Probe({spec.name: values[spec.name] for spec in inputs}, sizes)
