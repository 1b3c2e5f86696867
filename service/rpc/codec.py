"""Tensors and parameters between the wire and plain values.

Everything that a client claims about a tensor is checked here against the bytes it sent, before memory is taken for it. What the model
takes is checked later, by its spec.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from time import monotonic
from typing import Any, TypeVar

import numpy as np
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from service.errors import BadInput
from service.messages import Parameter
from service.pb.graphcache.v1 import replay_pb2
from service.pb.inference import grpc_service_pb2
from service.tensors import Buffer, Datatype, HostTensor

Name = TypeVar("Name", bound=StrEnum)

MAX_ELEMENTS = 2**48  # beyond any tensor; ends the product of sizes before it grows without bound

_DATATYPES = {str(datatype): datatype for datatype in Datatype}

# Where typed contents carry the values of a datatype. FP16 and BF16 have no place there.
_TYPED_FIELDS = {
    Datatype.BOOL: "bool_contents",
    Datatype.INT8: "int_contents",
    Datatype.INT16: "int_contents",
    Datatype.INT32: "int_contents",
    Datatype.INT64: "int64_contents",
    Datatype.UINT8: "uint_contents",
    Datatype.UINT16: "uint_contents",
    Datatype.UINT32: "uint_contents",
    Datatype.UINT64: "uint64_contents",
    Datatype.FP32: "fp32_contents",
    Datatype.FP64: "fp64_contents",
}
_WIDEST = {"b": np.dtype(np.bool_), "i": np.dtype(np.int64), "u": np.dtype(np.uint64), "f": np.dtype(np.float64)}  # by numpy's kind


def host_tensor(name: str, datatype: str, shape: Sequence[int], data: Buffer) -> HostTensor:
    """A tensor over the bytes as they came, not copied. Raises BadInput where bytes, shape and datatype don't agree."""
    known, sizes = _declared(name, datatype, shape)
    expected = _elements(name, sizes) * known.itemsize
    if len(data) != expected:
        raise BadInput(name, f"has {len(data)} bytes, shape {_show(sizes)} and datatype {known} need {expected}")
    return HostTensor(known, sizes, data)


def typed_tensor(name: str, datatype: str, shape: Sequence[int], contents: grpc_service_pb2.InferTensorContents) -> HostTensor:
    """A tensor from the protocol's typed contents: copied, value by value. Raises BadInput."""
    known, sizes = _declared(name, datatype, shape)
    field = _TYPED_FIELDS.get(known)
    if field is None or known.numpy is None:
        raise BadInput(name, f"{known} comes in raw_input_contents only")
    values = getattr(contents, field)
    for other, _ in contents.ListFields():
        if other.name != field:
            raise BadInput(name, f"has {other.name}; the values of {known} come in {field} alone")
    expected = _elements(name, sizes)
    if len(values) != expected:
        raise BadInput(name, f"has {len(values)} values in {field}, shape {_show(sizes)} needs {expected}")
    wide = np.fromiter(values, dtype=_WIDEST[known.numpy.kind], count=expected)
    array = wide.astype(known.numpy)
    if known.numpy.kind in "iu" and (array != wide).any():
        raise BadInput(name, f"a value does not fit {known}")
    return HostTensor.of(known, array.reshape(sizes))


def raw_bytes(tensor: HostTensor) -> bytes:
    """The values as the wire takes them."""
    data = tensor.data
    return data if isinstance(data, bytes) else bytes(data)


def add_input(inputs: dict[str, HostTensor], name: str, tensor: HostTensor) -> None:
    """Collect an input. Raises BadInput where the name is empty or came before."""
    if not name:
        raise BadInput("", f"inputs[{len(inputs)}].name: can't be empty")
    if name in inputs:
        raise BadInput(name, "is there twice")
    inputs[name] = tensor


def parameters_of(wire: Mapping[str, grpc_service_pb2.InferParameter] | Mapping[str, replay_pb2.Parameter]) -> dict[str, Parameter]:
    """Request parameters. Raises BadInput for one without a value: it may be a choice that got lost."""
    found: dict[str, Parameter] = {}
    for name, parameter in wire.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise BadInput("", f"parameter {name!r}: has no value")
        found[name] = getattr(parameter, kind)
    return found


def deadline_of(time_remaining: float | None, timeout_us: float | None) -> float | None:
    """The earlier of the call's deadline and the request's own timeout, on time.monotonic(); None where there is neither."""
    seconds = time_remaining
    if timeout_us is not None and (seconds is None or timeout_us * 1e-6 < seconds):
        seconds = timeout_us * 1e-6
    return None if seconds is None else monotonic() + seconds


def wire_enum(names: Iterable[Name], wire: EnumTypeWrapper, prefix: str) -> dict[Name, Any]:
    """Each member of an enum to its number on the wire. Raises ValueError where the protocol lacks one: at import, not in a request."""
    return {name: wire.Value(f"{prefix}_{name.name}") for name in names}


def _declared(name: str, datatype: str, shape: Sequence[int]) -> tuple[Datatype, tuple[int, ...]]:
    known = _DATATYPES.get(datatype)
    if known is None:
        raise BadInput(name, f"datatype {datatype!r} is not supported; it is one of {', '.join(_DATATYPES)}")
    return known, tuple(shape)


def _elements(name: str, sizes: tuple[int, ...]) -> int:
    count = 1
    for position, size in enumerate(sizes):
        if size < 0:
            raise BadInput(name, f"size {size} of dimension {position} is negative")
        count *= size
        if count > MAX_ELEMENTS:
            raise BadInput(name, f"shape {_show(sizes)} overflows")
    return count


def _show(sizes: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, sizes[:8]))}{', …' if len(sizes) > 8 else ''}]"
