"""How far two answers are apart, and how far they may be. Pure numpy.

Distances are relative: an element's difference is divided by its own magnitude plus the scale of its row, so that cancellation near
zero does not count as an error, and a small row beside a large one is still looked at closely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from service.models.spec import OutputSpec
from service.tensors import Datatype, HostTensor

Outputs = Mapping[str, HostTensor]
Floats = npt.NDArray[np.floating[Any]]

_SAFETY = 4.0  # eager's own drift, seen at few sizes, times this is what is allowed
_COLUMN_SLACK = 4.0  # an element may be that much larger than the largest seen in its column
_TELLING = 0.125  # share of finite elements
_FLIPS = 0.02  # share of integers that may differ where eager itself flips them (ties of an argmax)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is always allowed, and what drift can raise it to."""

    floor: float
    cap: float


# By precision of the arithmetic: a few units in the last place, and what other kernels for another size may make of them in a deep model.
BOUNDS: Mapping[Datatype, Bounds] = {
    Datatype.FP64: Bounds(1e-11, 1e-7),
    Datatype.FP32: Bounds(1e-5, 1e-3),
    Datatype.FP16: Bounds(2e-3, 2e-2),
    Datatype.BF16: Bounds(8e-3, 5e-2),
}


def coarser(one: Datatype, other: Datatype | None) -> Datatype:
    """Of two float datatypes the one with fewer digits."""
    order = list(BOUNDS)
    return one if other is None or order.index(one) >= order.index(other) else other


def values(tensor: HostTensor) -> npt.NDArray[np.generic]:
    """The values as numpy knows them; half precision comes as float32."""
    if tensor.datatype is Datatype.BF16:
        return (tensor.bits().astype(np.uint32) << np.uint32(16)).view(np.float32)
    array = tensor.array()
    return array.astype(np.float32) if tensor.datatype is Datatype.FP16 else array


def identical(one: HostTensor, other: HostTensor) -> bool:
    """Equal shape and bits, except that NaN equals NaN whatever its payload."""
    if one.shape != other.shape or one.datatype is not other.datatype:
        return False
    if one.data == other.data:
        return True
    if not one.datatype.is_float:
        return False
    a, b = values(one), values(other)
    return bool(np.array_equal(a.view(), b, equal_nan=True) and np.array_equal(np.signbit(a[a == 0]), np.signbit(b[b == 0])))


@dataclass(frozen=True, slots=True)
class Scale:
    """Magnitudes of one float output: per row, and per place within a row. Rows are at the front."""

    rows: Floats
    columns: Floats | None  # None where too few rows were seen to tell

    @classmethod
    def of(cls, reference: Floats, batch: int | None, *, columns: bool = True) -> Scale:
        """From an answer; `batch` is the dimension of its rows."""
        magnitudes = np.where(np.isfinite(reference), np.abs(reference), 0)
        if batch is None or magnitudes.ndim == 0:
            return cls(np.asarray(magnitudes.max(initial=0)), None)
        magnitudes = np.moveaxis(magnitudes, batch, 0)
        per_row = magnitudes.reshape(len(magnitudes), -1).max(axis=1, initial=0)
        per_row = np.maximum(per_row, np.median(per_row))
        return cls(per_row, magnitudes.max(axis=0) if columns and len(magnitudes) >= 4 else None)

    def at(self, shape: tuple[int, ...]) -> Floats:
        """For an answer of this shape (rows first), possibly of fewer rows and smaller axes."""
        if self.rows.ndim == 0:
            return self.rows
        rows = self.rows[: shape[0]].reshape((-1,) + (1,) * (len(shape) - 1))
        if self.columns is None or self.columns.ndim != len(shape) - 1:
            return rows
        columns = self.columns[tuple(slice(size) for size in shape[1:])]
        return np.minimum(rows, _COLUMN_SLACK * columns) if columns.shape == shape[1:] else rows


class Comparer:
    """Compares answers of one model. `precision` is the coarsest float datatype that the step computes in, where that is known."""

    def __init__(
        self,
        outputs: Sequence[OutputSpec],
        batch_axis: str,
        precision: Datatype | None,
        declared: Sequence[tuple[Datatype, float, float]],
        drift: Mapping[str, float] | None = None,
    ) -> None:
        self._batch = {spec.name: spec.shape.index(batch_axis) if batch_axis in spec.shape else None for spec in outputs}
        self._bounds = {
            spec.name: BOUNDS[coarser(spec.datatype, precision)] if spec.datatype.is_float else Bounds(0.0, 0.0) for spec in outputs
        }
        self._declared = {datatype: (rtol, atol) for datatype, rtol, atol in declared}
        self._drift = dict.fromkeys(self._batch, 0.0) | dict(drift or {})
        self._seen = dict.fromkeys(self._batch, 0)
        self._unstable = dict.fromkeys(self._batch, 0)
        self._excused = dict.fromkeys(self._batch, 0)
        self._typical: dict[str, float] = {}

    def scales(self, reference: Outputs, *, alike: bool = False) -> dict[str, Scale]:
        """Magnitudes of an eager answer at the whole bucket, to judge smaller ones by.

        Rows that are `alike` say nothing about what is usual at a place: an element near zero is so in all of them.
        """
        return {
            name: Scale.of(values(tensor), self._batch[name], columns=not alike)  # type: ignore[arg-type]
            for name, tensor in reference.items()
            if tensor.datatype.is_float
        }

    def learn_magnitude(self, scales: Mapping[str, Scale]) -> None:
        """Magnitudes that are usual for this model."""
        self._typical = {name: float(np.median(scale.rows)) for name, scale in scales.items()}

    def typical_scales(self, reference: Outputs) -> dict[str, Scale]:
        """Magnitudes to judge an answer of few rows by, which has no larger one beside it: at least the usual ones."""
        return {name: Scale(np.maximum(scale.rows, self._typical.get(name, 0.0)), None) for name, scale in self.scales(reference).items()}

    def learn_drift(self, one: Outputs, other: Outputs, scales: Mapping[str, Scale]) -> None:
        """Two eager answers that ought to be equal, computed at different sizes: their distance is what kernels make of it."""
        for name, tensor in one.items():
            again = other[name]
            if tensor.shape != again.shape:
                continue
            if tensor.datatype.is_float:
                distance = self._relative(name, tensor, again, scales[name])
                if np.isfinite(distance):
                    self._drift[name] = max(self._drift[name], distance)
            else:
                self._unstable[name] += int((tensor.bits() != again.bits()).sum())

    def telling(self, answer: Outputs) -> bool:
        """Whether an answer can show that it is right: an output that is hardly anywhere finite equals nearly everything."""
        floats = [values(tensor) for tensor in answer.values() if tensor.datatype.is_float and tensor.nbytes]
        return all(np.isfinite(array).mean() >= _TELLING for array in floats)

    @property
    def drift(self) -> dict[str, float]:
        """The largest drift seen, by output."""
        return dict(self._drift)

    def problem(self, expected: Outputs, got: Outputs, scales: Mapping[str, Scale]) -> str:
        """Why an answer is not the expected one: empty where it is, within the tolerance."""
        for name, tensor in expected.items():
            answer = got[name]
            if answer.shape != tensor.shape:
                return f"output {name} is {list(answer.shape)}, eager gives {list(tensor.shape)}"
            if answer.datatype is not tensor.datatype:
                return f"output {name} is {answer.datatype}, eager gives {tensor.datatype}"
            if answer.data == tensor.data:
                self._seen[name] += answer.nbytes // answer.datatype.itemsize
                continue
            found = (
                self._float_problem(name, tensor, answer, scales[name])
                if tensor.datatype.is_float
                else self._int_problem(name, tensor, answer)
            )
            if found:
                return found
        return ""

    def _float_problem(self, name: str, expected: HostTensor, got: HostTensor, scale: Scale) -> str:
        declared = self._declared.get(expected.datatype)
        if declared is not None:
            a, b = values(expected), values(got)
            if np.allclose(b, a, rtol=declared[0], atol=declared[1], equal_nan=True):
                return ""
            return f"output {name} differs from eager by more than the declared tolerance"
        bounds = self._bounds[name]
        allowed = min(max(bounds.floor, _SAFETY * self._drift[name]), bounds.cap)
        distance = self._relative(name, expected, got, scale)
        if distance <= allowed:
            return ""
        if not np.isfinite(distance):
            return f"output {name} differs from eager in what is zero, infinite or no number"
        return f"output {name} differs from eager by {distance:.2g} of its magnitude, {allowed:.2g} is allowed"

    def _int_problem(self, name: str, expected: HostTensor, got: HostTensor) -> str:
        """Integers are exact, but for a few ties that eager itself does not settle."""
        differing = int((expected.bits() != got.bits()).sum())
        self._seen[name] += differing + int((expected.bits() == got.bits()).sum())
        self._excused[name] += differing
        if self._unstable[name] and self._excused[name] <= max(1.0, _FLIPS * self._seen[name]):
            return ""
        return f"output {name} differs from eager in {differing} of {expected.nbytes // expected.datatype.itemsize} elements"

    def _relative(self, name: str, expected: HostTensor, got: HostTensor, scale: Scale) -> float:
        a, b = values(expected), values(got)
        batch = self._batch[name]
        if batch:
            a, b = np.moveaxis(a, batch, 0), np.moveaxis(b, batch, 0)
        return relative_distance(a, b, scale.at(a.shape))  # type: ignore[arg-type]


def relative_distance(expected: Floats, got: Floats, scale: Floats) -> float:
    """The largest |got − expected| / (|expected| + scale); infinite where one is finite and the other is not."""
    with np.errstate(all="ignore"):
        same = (expected == got) | (np.isnan(expected) & np.isnan(got))
        if same.all():
            return 0.0
        if (~same & ~(np.isfinite(expected) & np.isfinite(got))).any():
            return float("inf")
        distance = np.abs(got.astype(np.float64) - expected) / (np.abs(expected).astype(np.float64) + scale)
        return float(np.where(same, 0.0, distance).max())
