"""Staging against a plain reference: every element of the bucket is what it must be, whatever was there before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from service.backends.base import Batch, Padding, Part
from service.backends.staging import ALIGNMENT, InputStaging, OutputStaging
from service.choices import Fill
from service.models.spec import AxisSpec, InputSpec, ModelSpec, OutputSpec, StateSpec
from service.tensors import Datatype, HostTensor

BUCKET = {"batch": 6, "seq": 4, "width": 3}
AXES = tuple(AxisSpec(name, size, (size,)) for name, size in BUCKET.items())


def spec_of(*inputs: InputSpec, outputs: tuple[OutputSpec, ...] = (), state: tuple[StateSpec, ...] = ()) -> ModelSpec:
    """A model of these tensors."""
    return ModelSpec("m", "1", inputs, outputs, AXES, state=state)


parts_of = st.lists(st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=3)


def numbers(shape: tuple[int, ...], seed: int) -> npt.NDArray[np.int32]:
    """Distinct values above zero."""
    return np.random.default_rng(seed).integers(1, 10**6, shape).astype(np.int32)


@given(declared=st.permutations(["batch", "seq", 2, "width"]), sizes=parts_of, repeat=st.booleans(), earlier=parts_of)
def test_staged_batch_is_the_parts_and_padding(
    declared: list[str | int], sizes: list[tuple[int, int, int]], repeat: bool, earlier: list[tuple[int, int, int]]
) -> None:
    """Any order of axes, several parts of unlike sizes, either padding; an earlier batch leaves nothing."""
    spec = spec_of(InputSpec("x", Datatype.INT32, tuple(declared), pad=-7))
    staging = InputStaging(spec, BUCKET)

    def batch_of(sizes: list[tuple[int, int, int]], seed: int) -> Batch:
        parts = []
        for at, (batch, seq, width) in enumerate(sizes):
            shape = {"batch": batch, "seq": seq, "width": width}
            values = numbers(tuple(shape[axis] if isinstance(axis, str) else axis for axis in declared), seed + at)
            parts.append(Part({"x": HostTensor.of(Datatype.INT32, values)}, shape))
        return Batch.of(parts, "batch")

    staging.write(batch_of(earlier, 50))
    batch = batch_of(sizes, 1)
    staging.write(batch, Padding.REPEAT if repeat else Padding.VALUE)

    rows = declared.index("batch")
    expected = np.full([BUCKET[axis] if isinstance(axis, str) else axis for axis in declared], -7, np.int32)
    front, at = np.moveaxis(expected, rows, 0), 0
    for part in batch.parts:
        values = np.moveaxis(part.inputs["x"].array(), rows, 0)
        front[(slice(at, at + len(values)), *(slice(size) for size in values.shape[1:]))] = values
        at += len(values)
    if repeat:
        front[at:] = front[at - 1]
    np.testing.assert_array_equal(staging.bits("x").view(np.int32), expected)


@given(sizes=parts_of, repeat=st.booleans())
def test_padding_rows_name_scratch_slots_only(sizes: list[tuple[int, int, int]], repeat: bool) -> None:
    """Whatever the padding: live slots stand where they were sent, all others are scratch."""
    spec = spec_of(InputSpec("slot", Datatype.INT64, ("batch",)), state=(StateSpec("cache", "slot", 3, 100),))
    staging = InputStaging(spec, BUCKET)
    staging.write_safe()
    assert set(staging.bits("slot").tolist()) <= {100, 101, 102}
    parts = []
    for at, (batch, _, _) in enumerate(sizes):
        slots = np.arange(batch) + 10 * at
        parts.append(Part({"slot": HostTensor.of(Datatype.INT64, slots)}, {"batch": batch}))
    staging.write(Batch.of(parts, "batch"), Padding.REPEAT if repeat else Padding.VALUE)
    written = staging.bits("slot").tolist()
    real = [int(slot) for part in parts for slot in part.inputs["slot"].array()]
    assert written[: len(real)] == real
    assert set(written[len(real) :]) <= {100, 101, 102}
    assert len(set(written[len(real) :])) == min(3, 6 - len(real))


def test_safe_values_lie_in_the_declared_range() -> None:
    """Pad values are brought into the range; filled inputs say that everything is real."""
    spec = spec_of(
        InputSpec("low", Datatype.INT64, ("batch",), pad=0, range=(5, 9)),
        InputSpec("half", Datatype.BF16, ("batch",), pad=1.5),
        InputSpec("valid", Datatype.BOOL, ("batch", "seq"), fill=Fill.VALID, fill_axis="seq"),
        InputSpec("length", Datatype.INT32, ("batch",), fill=Fill.LENGTH, fill_axis="seq"),
        InputSpec("place", Datatype.INT64, ("seq",), fill=Fill.POSITION, fill_axis="seq"),
    )
    staging = InputStaging(spec, BUCKET)
    staging.write_safe()
    assert set(staging.bits("low").tolist()) == {5}
    assert set(staging.bits("half").tolist()) == {0x3FC0}
    assert staging.bits("valid").all()
    assert set(staging.bits("length").tolist()) == {4}
    assert staging.bits("place").tolist() == [0, 1, 2, 3]


def test_filled_rows_are_repeated_with_their_row() -> None:
    """A repeated padding row is a whole copy: its mask and length are the last real row's."""
    spec = spec_of(
        InputSpec("x", Datatype.FP32, ("batch", "seq")),
        InputSpec("valid", Datatype.BOOL, ("batch", "seq"), fill=Fill.VALID, fill_axis="seq"),
        InputSpec("length", Datatype.INT32, ("batch",), fill=Fill.LENGTH, fill_axis="seq"),
    )
    staging = InputStaging(spec, BUCKET)
    x = HostTensor.of(Datatype.FP32, np.ones((2, 3), np.float32))
    staging.write(Batch.of([Part({"x": x}, {"batch": 2, "seq": 3})], "batch"), Padding.REPEAT)
    assert staging.bits("valid").tolist() == [[1, 1, 1, 0]] * 6
    assert staging.bits("length").tolist() == [3] * 6
    staging.write(Batch.of([Part({"x": x}, {"batch": 2, "seq": 3})], "batch"))
    assert staging.bits("valid").tolist() == [[1, 1, 1, 0]] * 2 + [[0] * 4] * 4
    assert staging.bits("length").tolist() == [3, 3, 0, 0, 0, 0]


@given(declared=st.permutations(["batch", "seq", 2]), sizes=parts_of)
def test_outputs_are_cut_by_axis_names(declared: list[str | int], sizes: list[tuple[int, int, int]]) -> None:
    """Any order of axes: each part gets its rows and its own size of the other axes, in memory of its own."""
    spec = spec_of(outputs=(OutputSpec("y", Datatype.INT32, tuple(declared)),))
    staging = OutputStaging(spec, BUCKET)
    whole = staging.bits("y")
    whole[...] = np.arange(whole.size, dtype=np.uint32).reshape(whole.shape)
    parts = [Part({}, {"batch": batch, "seq": seq, "width": width}) for batch, seq, width in sizes]
    results = staging.cut(Batch.of(parts, "batch"))
    front, at = np.moveaxis(whole.copy(), declared.index("batch"), 0), 0
    whole[...] = 0
    seq_at = [axis for axis in declared if axis != "batch"].index("seq") + 1
    for part, outputs in zip(parts, results, strict=True):
        rows = front[at : at + part.shape["batch"]].take(range(part.shape["seq"]), axis=seq_at)
        np.testing.assert_array_equal(outputs["y"].bits(), np.moveaxis(rows, 0, declared.index("batch")))
        at += part.shape["batch"]


def test_tensors_are_aligned_side_by_side() -> None:
    """Each begins on a multiple of the alignment, and typed views of the buffer are the same memory."""
    spec = spec_of(InputSpec("a", Datatype.INT8, ("batch",)), InputSpec("b", Datatype.FP64, ("batch",)))
    staging = InputStaging(spec, BUCKET)
    assert staging.nbytes == 2 * ALIGNMENT
    views = staging.views(staging.host)
    views["b"].fill_(2.5)
    assert staging.bits("b").view(np.float64).tolist() == [2.5] * 6
    assert views["b"].data_ptr() - views["a"].data_ptr() == ALIGNMENT
