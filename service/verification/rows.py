"""Whether rows may be merged: a row's answer must not depend on the other rows, on its place among them, or on their number.

At a fixed size nothing but the other rows' values changes, so there the answer has to be the same to the bit. Where rows move or their
number changes, other kernels may run: there the tolerance holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.backends.base import Outputs
from service.errors import ModelRaised
from service.models.spec import ModelSpec, Shape
from service.tensors import HostTensor
from service.verification.comparing import Comparer, identical
from service.verification.samples import Inputs, Kind, Sampler, rows_of, take_rows, with_rows
from service.verification.trials import Runner, Trial

_ROWS = 8
_COINCIDENCES = 4  # samples of each kind whose rows have values in common


def independent(spec: ModelSpec, runner: Runner, comparer: Comparer, sampler: Sampler) -> bool:
    """Try it with at most 8 rows, in at most 150 eager runs. False, too, where rows can't be told apart in inputs and outputs."""
    batch = spec.axis(spec.batch_axis)
    shapes = [entry.shape for entry in spec.inputs] + [entry.shape for entry in spec.outputs]
    if batch is None or batch.max < 2 or spec.state or any(batch.name not in shape for shape in shapes):
        return False
    shape = {axis.name: axis.sizes[0] for axis in spec.axes} | {batch.name: min(batch.max, _ROWS)}
    return _Experiment(spec, runner, comparer, sampler, shape).holds()


class _Experiment:
    def __init__(self, spec: ModelSpec, runner: Runner, comparer: Comparer, sampler: Sampler, shape: Shape) -> None:
        self._spec = spec
        self._runner = runner
        self._comparer = comparer
        self._sampler = sampler
        self._shape = shape
        self._rows = shape[spec.batch_axis]

    def holds(self) -> bool:
        for seed, kind in enumerate((Kind.NATURAL, Kind.SKEWED), 30):
            inputs = self._sampler.draw(self._shape, kind, seed)
            expected = self._eager(inputs, self._rows)
            if expected is None or not self._comparer.telling(expected):
                return False
            if not self._ignores_others(inputs, expected) or not self._ignores_place_and_number(inputs, expected):
                return False
            if not self._ignores_rows_like_its_own(inputs, expected):
                return False
        return True

    def _ignores_others(self, inputs: Inputs, expected: Outputs) -> bool:
        for seed, kind in enumerate((Kind.LARGE, Kind.SAME, Kind.SPECIAL, Kind.NATURAL, Kind.HUGE), 40):
            others = self._sampler.draw(self._shape, kind, seed)
            for kept in ([0], [self._rows // 2], [self._rows - 1]):
                got = self._eager(with_rows(self._spec, others, inputs, kept), self._rows)
                if got is None or not all(identical(a, b) for a, b in zip(self._cut(expected, kept), self._cut(got, kept), strict=True)):
                    return False
        return True

    def _ignores_rows_like_its_own(self, inputs: Inputs, expected: Outputs) -> bool:
        """Rows that meet by a key, a comparison or a shared cell do so only where values coincide, which made up ones never do.

        A model may reject what was put together here, which says nothing; where it rejects all of it, nothing is proven.
        """
        answered = 0
        for kept in (0, self._rows - 1):
            copies = self._eager(take_rows(self._spec, inputs, [kept] * self._rows), self._rows)
            if copies is None or not self._same(expected, copies, kept):
                return False
            put_together = [self._sampler.blended(inputs, kept, seed) for seed in range(_COINCIDENCES)]
            put_together += [self._sampler.pooled(inputs, kept, seed) for seed in range(_COINCIDENCES)]
            put_together += [with_rows(self._spec, constant, inputs, [kept]) for constant in self._sampler.constants(inputs)]
            for batch in put_together:
                got = self._eager(batch, self._rows)
                if got is not None and not self._same(expected, got, kept):
                    return False
                answered += got is not None
        return answered > 0

    def _same(self, expected: Outputs, got: Outputs, row: int) -> bool:
        return all(identical(a, b) for a, b in zip(self._cut(expected, [row]), self._cut(got, [row]), strict=True))

    def _ignores_place_and_number(self, inputs: Inputs, expected: Outputs) -> bool:
        everyone = list(range(self._rows))
        self._learn_drift(inputs)
        choices = [everyone[at:] + everyone[:at] for at in (1, self._rows // 2)]
        choices += [everyone[:size] for size in range(1, self._rows)] + [everyone[-size:] for size in range(1, self._rows)]
        for chosen in choices:
            got = self._eager(take_rows(self._spec, inputs, chosen), len(chosen))
            wanted = self._named(self._cut(expected, chosen))
            if got is None or self._comparer.problem(wanted, got, self._comparer.scales(wanted)):
                return False
        return True

    def _learn_drift(self, inputs: Inputs) -> None:
        one = self._eager(take_rows(self._spec, inputs, [0]), 1)
        many = self._eager(take_rows(self._spec, inputs, [0] * self._rows), self._rows)
        if one is not None and many is not None:
            self._comparer.learn_drift(one, self._named(self._cut(many, [0])), self._comparer.scales(one))

    def _eager(self, inputs: Inputs, rows: int) -> Outputs | None:
        answer = self._runner.eager(Trial(inputs, {**self._shape, self._spec.batch_axis: rows}))
        return None if isinstance(answer, ModelRaised) or not self._has_rows(answer, rows) else answer

    def _has_rows(self, outputs: Outputs, rows: int) -> bool:
        """Whether the outputs are as declared at least in their rows."""
        return all(
            len(outputs[entry.name].shape) == len(entry.shape)
            and outputs[entry.name].shape[entry.shape.index(self._spec.batch_axis)] == rows
            for entry in self._spec.outputs
        )

    def _cut(self, outputs: Outputs, rows: Sequence[int]) -> list[HostTensor]:
        return [rows_of(outputs[entry.name], entry.shape.index(self._spec.batch_axis), rows) for entry in self._spec.outputs]

    def _named(self, tensors: Sequence[HostTensor]) -> Outputs:
        return dict(zip((entry.name for entry in self._spec.outputs), tensors, strict=True))
