"""Tensors, parameters and deadlines between the wire and plain values."""

from __future__ import annotations

from math import prod
from time import monotonic
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import BadInput
from service.pb.graphcache.v1 import replay_pb2
from service.pb.inference import grpc_service_pb2 as pb
from service.rpc.codec import add_input, deadline_of, host_tensor, parameters_of, raw_bytes, typed_tensor
from service.tensors import Datatype

TYPED = [
    (Datatype.BOOL, "bool_contents", [True, False]),
    (Datatype.INT8, "int_contents", [-128, 127]),
    (Datatype.INT16, "int_contents", [-(2**15), 2**15 - 1]),
    (Datatype.INT32, "int_contents", [-(2**31), 2**31 - 1]),
    (Datatype.INT64, "int64_contents", [-(2**63), 2**63 - 1]),
    (Datatype.UINT8, "uint_contents", [0, 255]),
    (Datatype.UINT16, "uint_contents", [0, 2**16 - 1]),
    (Datatype.UINT32, "uint_contents", [0, 2**32 - 1]),
    (Datatype.UINT64, "uint64_contents", [0, 2**64 - 1]),
    (Datatype.FP32, "fp32_contents", [-1.5, float("inf")]),
    (Datatype.FP64, "fp64_contents", [1e-300, float("-inf")]),
]


def contents(field: str, values: list[Any]) -> pb.InferTensorContents:
    """Typed contents with one field filled."""
    message = pb.InferTensorContents()
    getattr(message, field).extend(values)
    return message


@pytest.mark.parametrize("datatype", list(Datatype))
def test_raw_bytes_are_taken_over_without_a_copy(datatype: Datatype) -> None:
    """The tensor's data is the very object of the message, and goes back to the wire as it is."""
    data = bytes(range(2 * datatype.itemsize))
    tensor = host_tensor("x", str(datatype), [2, 1], data)
    assert tensor.datatype is datatype
    assert tensor.shape == (2, 1)
    assert tensor.data is data
    assert raw_bytes(tensor) is data


@pytest.mark.parametrize(("datatype", "field", "values"), TYPED, ids=str)
def test_typed_contents_keep_the_extremes_of_their_datatype(datatype: Datatype, field: str, values: list[Any]) -> None:
    """The smallest and the largest value arrive exactly, in the datatype's own size."""
    tensor = typed_tensor("x", str(datatype), [1, 2], contents(field, values))
    assert tensor.shape == (1, 2)
    assert len(tensor.data) == tensor.nbytes == 2 * datatype.itemsize
    assert tensor.array().tolist() == [values]


@pytest.mark.parametrize(
    ("datatype", "field", "value"),
    [("INT8", "int_contents", 128), ("INT16", "int_contents", -(2**15) - 1), ("UINT8", "uint_contents", 256)],
)
def test_typed_value_outside_its_datatype_is_refused(datatype: str, field: str, value: int) -> None:
    """Nothing wraps around."""
    with pytest.raises(BadInput, match=f"'x'.*{datatype}"):
        typed_tensor("x", datatype, [1], contents(field, [value]))


def test_values_in_two_fields_are_refused() -> None:
    """One of them would be left out in silence."""
    both = contents("fp32_contents", [1.0])
    both.int_contents.append(2)
    with pytest.raises(BadInput, match="'x': has int_contents; the values of FP32 come in fp32_contents alone"):
        typed_tensor("x", "FP32", [1], both)


def test_an_input_without_a_name_is_told_by_its_place() -> None:
    """There is no name to tell."""
    with pytest.raises(BadInput, match=r"^inputs\[0\].name: can't be empty$"):
        add_input({}, "", host_tensor("", "INT8", [1], b"1"))


@given(
    st.sampled_from([str(datatype) for datatype in Datatype]) | st.text(max_size=5),
    st.lists(st.integers(-3, 5) | st.integers(-(2**63), 2**63 - 1), max_size=5),
    st.binary(max_size=64),
)
def test_whatever_is_claimed_a_tensor_agrees_with_its_bytes(datatype: str, shape: list[int], data: bytes) -> None:
    """A tensor where all three agree, whose values can be read; BadInput with its name in every other case."""
    agrees = datatype in set(map(str, Datatype)) and min(shape, default=0) >= 0 and prod(shape) * Datatype(datatype).itemsize == len(data)
    if agrees and prod(size or 1 for size in shape) < 2**59:  # numpy refuses more even where a 0 is among them
        array = host_tensor("x", datatype, shape, data).array()
        assert (array.shape, array.nbytes) == (tuple(shape), len(data))
    elif not agrees:
        with pytest.raises(BadInput, match="'x'"):
            host_tensor("x", datatype, shape, data)


def test_a_reply_from_foreign_memory_becomes_bytes() -> None:
    """The wire takes bytes only; a view of an array is copied once."""
    array = np.arange(6, dtype=np.float32)
    assert raw_bytes(host_tensor("x", "FP32", [6], memoryview(array.view(np.uint8).data))) == array.tobytes()


def test_parameters_of_both_protocols_keep_their_types() -> None:
    """bool, int, float and str stay what they are; a parameter without a value is named."""
    ours = pb.ModelInferRequest()
    ours.parameters["b"].bool_param = True
    ours.parameters["i"].int64_param = -3
    ours.parameters["u"].uint64_param = 2**63
    ours.parameters["d"].double_param = 0.5
    ours.parameters["s"].string_param = "legal"
    assert parameters_of(ours.parameters) == {"b": True, "i": -3, "u": 2**63, "d": 0.5, "s": "legal"}
    ours.parameters["nothing"].SetInParent()
    with pytest.raises(BadInput, match="parameter 'nothing': has no value"):
        parameters_of(ours.parameters)
    theirs = replay_pb2.ReplayRequest()
    theirs.parameters["b"].bool_value = False
    theirs.parameters["i"].int_value = 7
    assert parameters_of(theirs.parameters) == {"b": False, "i": 7}


def test_the_earlier_deadline_counts() -> None:
    """Of the call's deadline and the request's timeout the earlier one holds, on the monotonic clock."""
    now = monotonic()
    assert deadline_of(None, None) is None
    assert deadline_of(5.0, None) == pytest.approx(now + 5, abs=1)
    assert deadline_of(None, 3e6) == pytest.approx(now + 3, abs=1)
    assert deadline_of(5.0, 9e6) == pytest.approx(now + 5, abs=1)
    assert deadline_of(9.0, 5e6) == pytest.approx(now + 5, abs=1)
