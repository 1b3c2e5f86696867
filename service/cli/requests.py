"""Making up requests for a described model, and reading and writing tensors as files. Raises ConfigError for what doesn't fit."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from service.errors import ConfigError
from service.pb.graphcache.v1.replay_pb2 import DescribeModelResponse, Tensor, TensorDescription
from service.rpc import codec
from service.tensors import Datatype, HostTensor

MAX_MESSAGE = 2**31  # bytes: the limit of protobuf

Array = npt.NDArray[np.generic]


def complete_sizes(model: DescribeModelResponse, sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes of exactly the model's axes, in its order."""
    names = [axis.name for axis in model.axes]
    for name in sizes:
        if name not in names:
            raise ConfigError(f"{model.model} has no axis {name!r}; its axes are {', '.join(names) or 'none'}")
    for name in names:
        if name not in sizes:
            raise ConfigError(f"no size for axis {name!r} of {model.model}")
    return {name: sizes[name] for name in names}


def shape_of(tensor: TensorDescription, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The declared shape with its axes filled in."""
    return tuple(int(part) if part.isdecimal() else sizes[part] for part in tensor.shape)


def random_inputs(model: DescribeModelResponse, sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, HostTensor]:
    """Values for every input: floats from a normal distribution, integers from the declared range (zero without one), distinct slots."""
    slots = {state.index_input: state.slots for state in model.state}
    inputs = {}
    for tensor in model.inputs:
        shape = shape_of(tensor, sizes)
        if prod(shape) * Datatype(tensor.datatype).itemsize >= MAX_MESSAGE:
            raise ConfigError(f"input {tensor.name!r}: {list(shape)} is more than a gRPC message can carry")
        if tensor.name in slots:
            count = int(np.prod(shape))
            if count > slots[tensor.name]:
                raise ConfigError(f"input {tensor.name!r}: {count} rows, but there are only {slots[tensor.name]} slots")
            values: Array = rng.permutation(slots[tensor.name])[:count].reshape(shape)
        else:
            values = _random_values(tensor, shape, rng)
        inputs[tensor.name] = from_array(Datatype(tensor.datatype), values)
    return inputs


def _random_values(tensor: TensorDescription, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    datatype = Datatype(tensor.datatype)
    if datatype.is_float:
        return rng.standard_normal(shape, dtype=np.float32)
    if datatype is Datatype.BOOL:
        return rng.integers(0, 2, shape)
    if tensor.HasField("range"):
        return rng.integers(tensor.range.low, tensor.range.high, shape, endpoint=True)
    return np.zeros(shape, np.int64)  # an index out of range could take the device down


def from_array(datatype: Datatype, values: Array) -> HostTensor:
    """Values converted to the datatype; BF16 drops the lower half of a float32, rounded to even."""
    if datatype.numpy is not None:
        return HostTensor.of(datatype, values.astype(datatype.numpy))
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return HostTensor.of(datatype, ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16))


def to_array(tensor: HostTensor) -> Array:
    """Values as numpy holds them; BF16 becomes float32."""
    if tensor.datatype.numpy is not None:
        return tensor.array()
    return (tensor.bits().astype(np.uint32) << 16).view(np.float32)


def read_npz(path: Path, model: DescribeModelResponse) -> dict[str, HostTensor]:
    """Arrays by the inputs' names. Datatypes must be the declared ones, but BF16 is written as float32."""
    try:
        if path.is_file() and not zipfile.is_zipfile(path):
            raise ConfigError(f"{path}: is no .npz file")
        with np.load(path, allow_pickle=False) as arrays:
            found = dict(arrays)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: {error}") from None
    declared = {tensor.name: Datatype(tensor.datatype) for tensor in model.inputs}
    if unknown := set(found) - set(declared):
        raise ConfigError(f"{path}: {model.model} has no input {min(unknown)!r}; it takes {', '.join(declared)}")
    for name, datatype in declared.items():
        if name not in found:
            raise ConfigError(f"{path}: input {name!r} is missing")
        wanted = datatype.numpy or np.dtype(np.float32)
        if found[name].dtype != wanted:
            raise ConfigError(f"{path}: input {name!r} is {found[name].dtype}, expected {wanted}")
    return {name: from_array(datatype, found[name]) for name, datatype in declared.items()}


def write_npz(path: Path, outputs: Mapping[str, HostTensor]) -> None:
    """Outputs by name."""
    arrays = {name: to_array(tensor) for name, tensor in outputs.items()}
    try:
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def to_wire(inputs: Mapping[str, HostTensor]) -> list[Tensor]:
    """Tensors as the protocol carries them."""
    return [Tensor(name=name, datatype=t.datatype, shape=t.shape, data=codec.raw_bytes(t)) for name, t in inputs.items()]


def from_wire(tensors: Iterable[Tensor]) -> dict[str, HostTensor]:
    """Tensors by name."""
    return {tensor.name: codec.host_tensor(tensor.name, tensor.datatype, tensor.shape, tensor.data) for tensor in tensors}
