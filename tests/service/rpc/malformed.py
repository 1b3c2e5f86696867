"""Requests that must be refused, made by spoiling a good one. Usable against any server of the Open Inference Protocol subset."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import grpc
import pytest

from service.pb.graphcache.v1 import replay_pb2
from service.pb.inference import grpc_service_pb2 as pb

Request = pb.ModelInferRequest


class InferStub(Protocol):
    """What is needed of a stub of the inference service on an aio channel."""

    def ModelInfer(self, request: Request, /) -> Awaitable[pb.ModelInferResponse]:  # noqa: N802
        """One inference."""
        ...


@dataclass(frozen=True)
class Case:
    """How to spoil a good request, whose first input is INT64 [batch, seq], and what must come of it.

    `names` must be in the message; None means the first input's name.
    """

    name: str
    spoil: Callable[[Request], object]
    names: str | None = None
    code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT


def _shape(*sizes: int, data: bytes | None = None) -> Callable[[Request], object]:
    """Claim a shape; the bytes stay unless given."""

    def spoil(request: Request) -> None:
        request.inputs[0].shape[:] = sizes
        if data is not None:
            request.raw_input_contents[0] = data

    return spoil


def _datatype(datatype: str, data: Callable[[bytes], bytes] = lambda raw: raw) -> Callable[[Request], object]:
    def spoil(request: Request) -> None:
        request.inputs[0].datatype = datatype
        request.raw_input_contents[0] = data(request.raw_input_contents[0])

    return spoil


def _raw(change: Callable[[bytes], bytes]) -> Callable[[Request], object]:
    return lambda request: request.raw_input_contents.__setitem__(0, change(request.raw_input_contents[0]))


def _bytes(data: bytes) -> Callable[[bytes], bytes]:
    return lambda _: data


def _typed(datatype: str, field: str, values: Callable[[int], list[object]]) -> Callable[[Request], object]:
    """The first input alone, with typed contents; `values` gets the number of elements."""

    def spoil(request: Request) -> None:
        del request.raw_input_contents[:]
        del request.inputs[1:]
        count = 1
        for size in request.inputs[0].shape:
            count *= size
        request.inputs[0].datatype = datatype
        getattr(request.inputs[0].contents, field).extend(values(count))

    return spoil


def _twice(request: Request) -> None:
    request.inputs.append(request.inputs[0])
    request.raw_input_contents.append(request.raw_input_contents[0])


def _extra(request: Request) -> None:
    _twice(request)
    request.inputs[-1].name = "surplus"


def _without_first(request: Request) -> None:
    del request.inputs[0]
    del request.raw_input_contents[0]


def _without_all(request: Request) -> None:
    del request.inputs[:]
    del request.raw_input_contents[:]


def _without_first_name(request: Request) -> None:
    request.inputs[0].name = ""


def _both_contents(request: Request) -> None:
    request.inputs[0].contents.int64_contents.append(1)


def _output(name: str, parameter: str = "") -> Callable[[Request], object]:
    def spoil(request: Request) -> None:
        output = request.outputs.add(name=name)
        if parameter:
            output.parameters[parameter].int64_param = 1

    return spoil


def _frame(raw: bytes) -> bytes:
    return struct.pack("<I", len(raw)) + raw


NOT_FOUND = grpc.StatusCode.NOT_FOUND

CASES: tuple[Case, ...] = (
    Case("unknown_model", lambda r: setattr(r, "model_name", "nosuchmodel"), "nosuchmodel", NOT_FOUND),
    Case("no_model_name", lambda r: setattr(r, "model_name", ""), "", NOT_FOUND),
    Case("unknown_version", lambda r: setattr(r, "model_version", "77"), "77", NOT_FOUND),
    Case("wrong_input_name", lambda r: setattr(r.inputs[0], "name", "nonsense"), "nonsense"),
    Case("no_input_name", _without_first_name, "inputs[0].name"),
    Case("missing_input", _without_first),
    Case("no_inputs", _without_all),
    Case("input_twice", _twice),
    Case("surplus_input", _extra, "surplus"),
    Case("rank_0", _shape()),
    Case("rank_one_short", _shape(8)),
    Case("rank_one_long", lambda r: r.inputs[0].shape.append(1)),
    Case("rank_5000", lambda r: r.inputs[0].shape.extend([1] * 5000)),
    Case("negative_size", lambda r: r.inputs[0].shape.__setitem__(0, -1)),
    Case("most_negative_size", lambda r: r.inputs[0].shape.__setitem__(1, -(2**63))),
    Case("negatives_whose_product_fits", _shape(-1, -1, data=bytes(8))),
    Case("zero_batch", _shape(0, 8, data=b"")),
    Case("zero_length", _shape(1, 0, data=b"")),
    Case("zero_times_huge", _shape(0, 2**62, data=b"")),
    Case("size_of_31_bits", _shape(2**31, 1)),
    Case("product_overflows", _shape(2**62, 2**62)),
    Case("product_wraps_to_zero", _shape(2**32, 2**32, data=b"")),
    Case("product_wraps_to_fit", _shape(2**61 + 1, 8, data=bytes(64))),
    Case("product_of_60_huge_sizes", _shape(*[2**62] * 60)),
    Case("huge_shape_without_bytes", _shape(2**40, 1, data=b"")),
    Case("more_rows_than_bytes", lambda r: r.inputs[0].shape.__setitem__(0, 2 * r.inputs[0].shape[0])),
    Case("fewer_columns_than_bytes", lambda r: r.inputs[0].shape.__setitem__(1, r.inputs[0].shape[1] - 1)),
    Case("one_byte_short", _raw(lambda raw: raw[:-1])),
    Case("one_byte_long", _raw(lambda raw: raw + b"\0")),
    Case("one_element_long", _raw(lambda raw: raw + bytes(8))),
    Case("one_byte", _raw(lambda raw: raw[:1])),
    Case("no_bytes", _raw(_bytes(b""))),
    Case("datatype_of_equal_size", _datatype("FP64")),
    Case("unsigned", _datatype("UINT64")),
    Case("smaller_datatype", _datatype("INT32", lambda raw: raw[: len(raw) // 2])),
    Case("bfloat16", _datatype("BF16", lambda raw: raw[: len(raw) // 4])),
    Case("unknown_datatype", _datatype("INT128")),
    Case("lower_case_datatype", _datatype("int64")),
    Case("no_datatype", _datatype("")),
    Case("bytes_datatype", _datatype("BYTES", _frame)),
    Case("bytes_with_a_lying_frame", _datatype("BYTES", lambda raw: b"\xff\xff\xff\xff" + raw)),
    Case("bytes_with_half_a_frame", _datatype("BYTES", _bytes(b"\x01\x00"))),
    Case("no_contents_at_all", lambda r: r.raw_input_contents.__delitem__(slice(None))),
    Case("one_raw_content_too_many", lambda r: r.raw_input_contents.append(b"")),
    Case("one_raw_content_too_few", lambda r: r.inputs.append(r.inputs[0])),
    Case("raw_and_typed_contents", _both_contents),
    Case("typed_one_value_short", _typed("INT64", "int64_contents", lambda count: [1] * (count - 1))),
    Case("typed_one_value_long", _typed("INT64", "int64_contents", lambda count: [1] * (count + 1))),
    Case("typed_in_another_field", _typed("INT64", "fp32_contents", lambda count: [1.0] * count)),
    Case("typed_half_precision", _typed("FP16", "fp32_contents", lambda count: [1.0] * count)),
    Case("typed_value_too_large", _typed("INT8", "int_contents", lambda count: [300] * count)),
    Case("typed_bytes", _typed("BYTES", "bytes_contents", lambda count: [b"x"] * count)),
    Case("input_in_shared_memory", lambda r: setattr(r.inputs[0].parameters["shared_memory_region"], "string_param", "region")),
    Case("output_in_shared_memory", _output("tokens", "shared_memory_region"), "tokens"),
    Case("classification", _output("tokens", "classification"), "classification"),
    Case("timeout_is_a_word", lambda r: setattr(r.parameters["timeout"], "string_param", "soon"), "timeout"),
    Case("timeout_is_negative", lambda r: setattr(r.parameters["timeout"], "int64_param", -5), "timeout"),
    Case("timeout_is_not_a_number", lambda r: setattr(r.parameters["timeout"], "double_param", float("nan")), "timeout"),
)


def spoilt(case: Case, good: Request) -> Request:
    """A copy of a good request, spoilt."""
    request = Request()
    request.CopyFrom(good)
    case.spoil(request)
    return request


def as_replay(request: Request) -> replay_pb2.ReplayRequest | None:
    """The same for ReplayService, or None where that has no such fault: it carries one value of bytes in each tensor."""
    typed = any(tensor.HasField("contents") or tensor.parameters for tensor in request.inputs)
    if typed or request.outputs or request.parameters or len(request.inputs) != len(request.raw_input_contents):
        return None
    return replay_pb2.ReplayRequest(
        model=request.model_name,
        version=request.model_version,
        inputs=[
            replay_pb2.Tensor(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape, data=data)
            for tensor, data in zip(request.inputs, request.raw_input_contents, strict=True)
        ],
    )


def names_of(case: Case, good: Request) -> str:
    """What the refusal's message has to name."""
    return good.inputs[0].name if case.names is None else case.names


async def assert_refused(call: Awaitable[object], case: Case, good: Request) -> None:
    """The call fails as the case says."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    code, message = refused.value.code(), refused.value.details() or ""
    assert code is case.code, f"{case.name}: {code}: {message}"
    assert names_of(case, good) in message, f"{case.name}: {message}"
