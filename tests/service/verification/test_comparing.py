from __future__ import annotations

import numpy as np

from service.models.spec import OutputSpec
from service.tensors import Datatype, HostTensor
from service.verification.comparing import Comparer, identical, relative_distance
from service.verification.samples import encode

NAN = float("nan")


def fp32(values: object) -> HostTensor:
    return HostTensor.of(Datatype.FP32, np.asarray(values, np.float32))


def int64(values: object) -> HostTensor:
    return HostTensor.of(Datatype.INT64, np.asarray(values, np.int64))


def comparer(datatype: Datatype = Datatype.FP32, precision: Datatype | None = None, rtol: float | None = None) -> Comparer:
    declared = [] if rtol is None else [(datatype, rtol, 0.0)]
    return Comparer([OutputSpec("y", datatype, ("batch", 3))], "batch", precision, declared)


def problem(by: Comparer, expected: HostTensor, got: HostTensor) -> str:
    return by.problem({"y": expected}, {"y": got}, by.scales({"y": expected}))


def test_no_number_equals_no_number_and_nothing_else() -> None:
    """Legitimate NaN answers are right where eager gives them, too."""
    one = fp32([[1.0, NAN, 3.0]])
    assert not problem(comparer(), one, fp32([[1.0, NAN, 3.0]]))
    assert problem(comparer(), one, fp32([[1.0, 2.0, 3.0]]))
    assert problem(comparer(), fp32([[1.0, 2.0, 3.0]]), one)
    assert problem(comparer(), fp32([[1.0, np.inf, 3.0]]), fp32([[1.0, -np.inf, 3.0]]))


def test_a_small_row_beside_a_large_one_is_looked_at_closely() -> None:
    """An error that is nothing for the large row shows in the small one."""
    expected = fp32([[1e4, 1e4, 1e4], [1e-2, 1e-2, 1e-2], [1e-2, 1e-2, 1e-2]])
    off = np.array(expected.array())
    off[1] += 1e-3
    assert problem(comparer(), expected, fp32(off))


def test_cancellation_near_zero_is_no_error() -> None:
    """A rounding error of the row's magnitude is allowed in an element near zero."""
    expected = fp32([[1.0, 1e-9, -1.0]] * 2)
    off = np.array(expected.array())
    off[0, 1] = 2e-7
    assert not problem(comparer(), expected, fp32(off))


def test_drift_widens_the_tolerance_up_to_a_cap() -> None:
    """Eager's own differences between sizes are allowed, but no more than a datatype can explain."""
    by, expected = comparer(), fp32([[1.0, 2.0, 3.0]])
    near, far = fp32([[1.0, 2.0, 3.0001]]), fp32([[1.0, 2.0, 3.1]])
    assert problem(by, expected, near)
    by.learn_drift({"y": expected}, {"y": near}, by.scales({"y": expected}))
    assert not problem(by, expected, near)
    by.learn_drift({"y": expected}, {"y": far}, by.scales({"y": expected}))
    assert problem(by, expected, far)


def test_the_coarsest_arithmetic_inside_sets_the_tolerance() -> None:
    """A single-precision output of half-precision work is judged as half precision."""
    expected, off = fp32([[1.0, 2.0, 3.0]]), fp32([[1.0, 2.0, 3.02]])
    assert problem(comparer(), expected, off)
    assert not problem(comparer(precision=Datatype.BF16), expected, off)


def test_a_declared_tolerance_holds_instead() -> None:
    """`tolerance` in the configuration is the last word."""
    expected, off = fp32([[1.0, 2.0, 3.0]]), fp32([[1.0, 2.0, 3.02]])
    assert not problem(comparer(rtol=0.1), expected, off)
    assert problem(comparer(precision=Datatype.BF16, rtol=1e-6), expected, off)


def test_integers_are_exact_unless_eager_itself_flips_a_few() -> None:
    """Ties of an argmax are settled by rounding: one in fifty may differ where eager's own answers do."""
    expected, off = int64([[1, 2, 3]] * 40), int64([[1, 2, 3]] * 39 + [[1, 2, 4]])
    assert problem(comparer(Datatype.INT64), expected, off)
    by = comparer(Datatype.INT64)
    by.learn_drift({"y": expected}, {"y": off}, {})
    assert not problem(by, expected, off)
    assert problem(by, expected, int64([[1, 2, 4]] * 40))


def test_shapes_and_datatypes_are_compared() -> None:
    """Another number of rows is another answer."""
    assert "[1, 3]" in problem(comparer(), fp32([[1, 2, 3]] * 2), fp32([[1, 2, 3]]))
    assert problem(comparer(), fp32([[1, 2, 3]]), int64([[1, 2, 3]]))


def test_answers_that_are_hardly_anywhere_finite_tell_nothing() -> None:
    """They would equal nearly everything."""
    assert comparer().telling({"y": fp32([[1.0, NAN, NAN]])})
    assert not comparer().telling({"y": fp32([[NAN, NAN, NAN]] * 10)})


def test_identical_tells_zeros_apart_but_not_payloads_of_nan() -> None:
    """Bits count, except for what kind of NaN it is."""
    assert not identical(fp32([0.0]), fp32([-0.0]))
    other_nan = HostTensor.of(Datatype.FP32, np.array([0x7FC00001], np.uint32))
    assert identical(fp32([NAN]), other_nan)
    assert not identical(fp32([1.0]), fp32([[1.0]]))


def test_bfloat16_is_rounded_to_nearest() -> None:
    """Made-up values are what the datatype holds."""
    bits = encode(np.array([1.0, 1.00390625, -3.0e38]), Datatype.BF16)
    assert [int(value) for value in bits] == [0x3F80, 0x3F80, 0xFF62]


def test_distance_of_equal_infinities_is_zero() -> None:
    """They are equal, not infinitely apart."""
    assert relative_distance(np.array([np.inf, 1.0]), np.array([np.inf, 1.0]), np.array(1.0)) == 0.0
