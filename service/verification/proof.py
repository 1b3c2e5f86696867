"""The proof that a recording answers as eager does, before it may serve.

First at the full bucket: is the graph right? Then at sizes below it, against eager on the unpadded inputs: is padding right? What can
be padded by a repeated row only is served that way; what can't be padded is served at the bucket's exact size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property
from itertools import cycle
from typing import TypeVar

from cachepolicy.buckets import Bucket
from cachepolicy.reasons import RefusalReason
from service.backends.base import Backend, Outputs, Padding, Recording
from service.errors import CaptureRefused, ModelRaised, OutOfDeviceMemory, told
from service.lane import Lane
from service.models.loaded import LoadedModel
from service.models.spec import Shape, Variant
from service.recorder import Verdict
from service.tensors import HostTensor
from service.verification.comparing import Comparer, Scale, identical
from service.verification.judgement import Character, Judge
from service.verification.rows import independent
from service.verification.samples import ORDINARY, Accepted, Inputs, Kind, Sampler, crop, first_rows, rows_of, take_rows, with_rows
from service.verification.sizes import ends, sizes_below
from service.verification.slots import Layout
from service.verification.trials import Runner, Trial

log = logging.getLogger(__name__)

_REMEMBERED = 256  # loads whose judgement is kept
_PADLIKE = 4  # samples with elements that equal padding
_MIXED = 3  # shapes that are smaller on several axes at once
_ALONE = 16  # rows of each kind that are tried alone where what is in padding rows can be felt

K = TypeVar("K")
V = TypeVar("V")
Fresh = Callable[[LoadedModel], LoadedModel]


class Proof:
    """Proves graphs of all models. In the capturer's thread; runs go through the lane."""

    def __init__(self, backend: Backend, fresh: Fresh, accepted: Accepted | None = None) -> None:
        self.accepted = accepted or Accepted()
        self._backend = backend
        self._fresh = fresh
        self._judged: dict[str, dict[Variant, Character | CaptureRefused]] = {}
        self._standards: dict[tuple[str, Variant], Comparer] = {}
        self._independent: dict[tuple[str, Variant], bool] = {}
        self._swept: dict[tuple[str, Variant], dict[str, set[int]]] = {}  # sizes that answered as a larger one did, by axis

    def judge(self, model: LoadedModel, variant: Variant, lane: Lane) -> None:
        """See Verifier. All variants are judged at the first call for a load. Raises CaptureRefused, NotYetProvable."""
        self._character(model, variant, lane)

    def verify(self, model: LoadedModel, variant: Variant, recording: Recording, lane: Lane) -> Verdict:
        """See Verifier. Raises CaptureRefused, NotYetProvable."""
        character = self._character(model, variant, lane)
        swept = self._swept.get((model.weights, variant), {})
        case = _Case(self._backend, model, variant, recording, lane, character, self._sampler(model, character), swept)
        verdict = case.verdict()
        if verdict == Verdict():
            _remember(self._swept, (model.weights, variant), case.swept)
        _remember(self._standards, (model.weights, variant), case.comparer)
        log.info("proved %s/%s in %d runs: %s", model.weights, recording.bucket, case.runner.runs, verdict)
        return verdict

    def standard(self, model: LoadedModel, variant: Variant) -> Comparer | None:
        """What the last proof of this model compared with; None where there was none."""
        return self._standards.get((model.weights, variant))

    def rows_independent(self, model: LoadedModel, variant: Variant, lane: Lane) -> bool:
        """Whether a row's answer is the same whatever the other rows of its batch are, and wherever it stands among them.

        Proven once for each load and variant. Raises NotYetProvable.
        """
        known = self._independent.get((model.weights, variant))
        if known is None:
            character = self._character(model, variant, lane)
            comparer = _comparer(model, character)
            runner = Runner(self._backend, model, variant, lane)
            known = independent(model.spec, runner, comparer, self._sampler(model, character))
            _remember(self._independent, (model.weights, variant), known)
        return known

    def _sampler(self, model: LoadedModel, character: Character | None = None) -> Sampler:
        locked = character is not None and character.floats_to_integers
        return Sampler(model, self.accepted.of(model.spec.name), lock_floats=locked)

    def _character(self, model: LoadedModel, variant: Variant, lane: Lane) -> Character:
        judged = self._judged.get(model.weights)
        if judged is None:
            judged = self._judge_all(model, lane)
            _remember(self._judged, model.weights, judged)
        character = judged[variant]
        if isinstance(character, CaptureRefused):
            raise character.again()
        return character

    def _judge_all(self, model: LoadedModel, lane: Lane) -> dict[Variant, Character | CaptureRefused]:
        sampler = self._sampler(model)
        try:
            judge = Judge(self._backend, lane, lambda: self._fresh(model), sampler)
        except OutOfDeviceMemory as error:
            raise CaptureRefused(RefusalReason.OUT_OF_MEMORY, f"no memory for an instance to judge the model by: {error}") from error
        return judge.judge_all()


class _Case:
    """One recording under proof."""

    def __init__(
        self,
        backend: Backend,
        model: LoadedModel,
        variant: Variant,
        recording: Recording,
        lane: Lane,
        character: Character,
        sampler: Sampler,
        swept: Mapping[str, AbstractSet[int]],
    ) -> None:
        self._layout = Layout(model.spec, recording.bucket[model.spec.batch_axis]) if model.spec.state else None
        self._below = {
            axis: ends(size) if size in swept.get(axis, ()) else sizes_below(size, character.named) for axis, size in recording.bucket.sizes
        }
        if self._layout is not None:
            batch = model.spec.batch_axis
            self._below[batch] = [rows for rows in self._below[batch] if self._layout.free(rows)]
        self.swept = {axis: {*swept.get(axis, ()), *self._below[axis], size} for axis, size in recording.bucket.sizes}
        self._thorough = {axis for axis, _ in recording.bucket.sizes if not swept.get(axis)}
        self.runner = Runner(backend, model, variant, lane)
        self._spec = model.spec
        self._recording = recording
        self._bucket: Shape = recording.bucket.as_dict()
        self.comparer = _comparer(model, character)
        self._samples: dict[Kind, Inputs] = {kind: sampler.draw(self._bucket, kind, seed) for seed, kind in enumerate(Kind, 10)}
        self._sampler = sampler
        self._scales: dict[Kind, Mapping[str, Scale]] = {}
        self._eager: dict[tuple[Kind, Bucket], Outputs | ModelRaised] = {}

    def verdict(self) -> Verdict:
        """Raises CaptureRefused where not even a full bucket is answered right."""
        first = self._prove_full()
        verdict = Verdict()
        found = self._padding_problem(Padding.VALUE)
        if found:
            log.info("%s: padding by value is not safe: %s", self._recording.bucket, found)
            repeats = self._spec.batch_axis in self._bucket and not self._layout
            again = self._padding_problem(Padding.REPEAT) if repeats else found
            verdict = Verdict(exact_only=True, detail=found) if again else Verdict(Padding.REPEAT)
        self._refuse_overwritten(*first)
        return verdict

    # -- is the graph right?

    def _prove_full(self) -> tuple[Outputs, Outputs]:
        """Compare at the bucket's own size. Returns a reply and a copy of it, to see later whether it was left alone."""
        held: tuple[Outputs, Outputs] | None = None
        raised: ModelRaised | None = None
        for kind in (*ORDINARY, Kind.SPECIAL):
            trial = self._trial(kind, self._bucket)
            expected, got, state_problem = self.runner.compare(self._recording, trial, Padding.VALUE, None)
            self._eager[kind, self._recording.bucket] = expected
            if isinstance(expected, ModelRaised):
                raised = expected
                if not isinstance(got, Exception):
                    raise CaptureRefused(RefusalReason.MISMATCH, f"eager raises {expected}, the replay answers ({kind} values)")
                continue
            if isinstance(got, Exception):
                raise CaptureRefused(RefusalReason.MISMATCH, f"the replay raised {told(got)} ({kind} values)")
            self._scales[kind] = self.comparer.scales(expected, alike=kind is Kind.SAME)
            if kind is Kind.NATURAL:
                self.comparer.learn_magnitude(self._scales[kind])
                self._learn_drift(kind)
            found = self.comparer.problem(expected, got, self._scales[kind]) or state_problem
            if found:
                reason = RefusalReason.MISMATCH
                if any(got[name].shape != tensor.shape for name, tensor in expected.items()):
                    reason = RefusalReason.OUTPUT_SHAPE
                raise CaptureRefused(reason, f"{found} ({kind} values, full bucket)")
            if held is None:
                held = got, {name: HostTensor(tensor.datatype, tensor.shape, bytes(tensor.data)) for name, tensor in got.items()}
        if held is None:
            raise CaptureRefused(RefusalReason.CAPTURE_ERROR, f"the model raised in every trial run: {raised}")
        return held

    def _learn_drift(self, kind: Kind) -> None:
        """Repeating all rows changes no statistic of a batch, but it changes the kernels: what differs then is eager's own drift."""
        rows = self._bucket.get(self._spec.batch_axis, 1)
        if self._layout is not None:
            return
        for size in sorted({1, rows // 2} - {0, rows}):
            few = self._trial(kind, {**self._bucket, self._spec.batch_axis: size})
            times = rows // size
            order = list(range(size)) * times
            many = Trial(take_rows(self._spec, few.inputs, order), {**few.shape, self._spec.batch_axis: size * times})
            one, other = self.runner.eager(few), self.runner.eager(many)
            if isinstance(one, ModelRaised) or isinstance(other, ModelRaised):
                continue
            self._eager[kind, _as_bucket(few.shape)] = one
            cut = {
                spec.name: rows_of(other[spec.name], spec.shape.index(self._spec.batch_axis), range(size))
                for spec in self._spec.outputs
                if self._spec.batch_axis in spec.shape and len(other[spec.name].shape) == len(spec.shape)
            }
            self.comparer.learn_drift({name: one[name] for name in cut}, cut, self._scales[kind])

    def _refuse_overwritten(self, reply: Outputs, copy: Outputs) -> None:
        if any(not identical(tensor, copy[name]) for name, tensor in reply.items()):
            raise CaptureRefused(RefusalReason.MISMATCH, "a reply changed after it was given")

    # -- is padding right?

    def _padding_problem(self, padding: Padding) -> str:
        tried = telling = 0
        for kind, shape in self._smaller():
            if kind not in self._scales:
                continue
            trial = self._trial(kind, shape)
            known = self._eager.get((kind, _as_bucket(shape)))
            expected, got, state_problem = self.runner.compare(self._recording, trial, padding, known)
            self._eager[kind, _as_bucket(shape)] = expected
            where = f"{_as_bucket(shape)} padded to {self._recording.bucket}, {kind} values"
            if isinstance(expected, ModelRaised):
                if isinstance(got, Exception):
                    continue
                return f"eager raises {expected}, the replay answers ({where})"
            if isinstance(got, Exception):
                return f"the replay raised {told(got)} ({where})"
            found = self.comparer.problem(expected, got, self._scales[kind]) or state_problem
            if found:
                return f"{found} ({where})"
            tried += 1
            telling += self.comparer.telling(expected)
        if 2 * telling < tried:
            return "most answers are hardly anywhere finite, which proves nothing"
        found = self._problem_alone(padding) if self._feels_other_rows else ""
        return found or self._problem_coinciding(padding)

    def _problem_coinciding(self, padding: Padding) -> str:
        """Real elements that equal padding, or rows that a comparison puts on one side: what counts or looks up finds padding there."""
        if self._layout is not None:
            return ""
        for shape in self._ends_below():
            drawn = self._trial(Kind.NATURAL, shape).inputs
            constants = self._sampler.constants(drawn)
            for inputs in (*constants, *(self._sampler.padlike(drawn, seed) for seed in range(_PADLIKE))):
                expected, got, _ = self.runner.compare(self._recording, Trial(crop(self._spec, inputs, shape), shape), padding, None)
                if isinstance(expected, ModelRaised):  # it may well reject such values
                    continue
                where = f"{_as_bucket(shape)} padded to {self._recording.bucket}, values that coincide with padding"
                if isinstance(got, Exception):
                    return f"the replay raised {told(got)} ({where})"
                found = self.comparer.problem(expected, got, self.comparer.typical_scales(expected))
                if found:
                    return f"{found} ({where})"
        return ""

    def _ends_below(self) -> Iterator[Shape]:
        for axis, size in self._bucket.items():
            for end in ends(size) if axis in self._thorough else ends(size)[:1]:
                yield {**self._bucket, axis: end}

    @cached_property
    def _feels_other_rows(self) -> bool:
        """Whether the first row's answer changes, be it by a bit, with what the rest of a full bucket holds.

        If it does, padding may be right for one row and wrong for the next: a scale that is taken over the batch, say.
        """
        rows = self._bucket.get(self._spec.batch_axis, 1)
        if rows < 2 or self._layout is not None or Kind.NATURAL not in self._scales:
            return False
        first = self._samples[Kind.NATURAL]
        answers = [
            self.runner.replay(self._recording, Trial(with_rows(self._spec, self._samples[kind], first, [0]), self._bucket), Padding.VALUE)
            for kind in (Kind.NATURAL, Kind.LARGE, Kind.SMALL)
        ]
        if any(isinstance(answer, Exception) for answer in answers):
            return True
        own = [first_rows(self._spec, answer) for answer in answers if not isinstance(answer, Exception)]
        return any(not identical(one, other) for later in own[1:] for one, other in zip(own[0], later, strict=True))

    def _problem_alone(self, padding: Padding) -> str:
        shape = {**self._bucket, self._spec.batch_axis: 1}
        rows = self._bucket[self._spec.batch_axis]
        for at in range(_ALONE):
            for kind in (Kind.NATURAL, Kind.SMALL, Kind.SKEWED):
                inputs = self._sampler.draw(self._bucket, kind, 60 + at // rows)
                trial = Trial(crop(self._spec, take_rows(self._spec, inputs, [at % rows]), shape), shape)
                expected, got, _ = self.runner.compare(self._recording, trial, padding, None)
                if isinstance(expected, ModelRaised) or isinstance(got, Exception):
                    continue
                found = self.comparer.problem(expected, got, self.comparer.typical_scales(expected))
                if found:
                    return f"{found} (one row padded to {self._recording.bucket}, {kind} values)"
        return ""

    def _smaller(self) -> Iterator[tuple[Kind, Shape]]:
        """Shapes below the bucket, each with the kinds of values to try it with: each axis alone, then several at once.

        Kinds show what the step's arithmetic makes of padding, sizes what its code does. So all kinds are tried at both ends of the first
        bucket that an axis is proven for. Where the bucket's own size already answered as a larger one of the model did, its sizes below
        did so, too: both ends remain to be tried, for what this very recording makes of them.
        """
        others = cycle(kind for kind in ORDINARY if kind is not Kind.SAME)
        below = self._below
        for axis, sizes in below.items():
            for at, size in enumerate(sizes):
                shape = {**self._bucket, axis: size}
                if at < 2 and axis in self._thorough:
                    yield from ((kind, shape) for kind in ORDINARY)
                else:
                    yield Kind.SAME, shape
                    yield next(others), shape
        if sum(bool(sizes) for sizes in below.values()) > 1 and self._layout is None:
            for at in range(_MIXED):
                mixed = {axis: sizes[(at * 7) % len(sizes)] if sizes else self._bucket[axis] for axis, sizes in below.items()}
                yield next(others), mixed

    def _trial(self, kind: Kind, shape: Shape) -> Trial:
        return Trial(crop(self._spec, self._samples[kind], shape), shape)


def _comparer(model: LoadedModel, character: Character) -> Comparer:
    return Comparer(model.spec.outputs, model.spec.batch_axis, character.precision, model.spec.tolerance, character.drift)


def _as_bucket(shape: Shape) -> Bucket:
    return Bucket(tuple(shape.items()))


def _remember(table: dict[K, V], key: K, value: V) -> None:
    """Bounded: the oldest entry goes."""
    table[key] = value
    while len(table) > _REMEMBERED:
        table.pop(next(iter(table)))
