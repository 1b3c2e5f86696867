"""Whether a model may be recorded at all: judged once for each load, on an instance that nobody serves and that is then discarded.

Warm-up, then a b a c a, with everything that the model can reach compared before and after. What is built on the first call is no
state, unless that call's values decide later answers: a second instance, warmed up otherwise, has to answer alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce

import torch

from cachepolicy.reasons import RefusalReason
from service.backends.base import Backend
from service.backends.blockers import Blocker
from service.backends.watch import refuse_training, why_no_callback
from service.errors import CaptureRefused, ModelRaised
from service.lane import Lane
from service.models.loaded import TORCH_DTYPES, LoadedModel
from service.models.spec import ModelSpec, Shape, Variant
from service.tensors import Datatype
from service.verification.code_constants import named_integers
from service.verification.comparing import Comparer, coarser
from service.verification.fingerprints import Snapshot, foreign_hooks
from service.verification.observing import Run, Witness, observe
from service.verification.samples import Inputs, Kind, Sampler
from service.verification.slots import TrialSlots


@dataclass(frozen=True, slots=True)
class Character:
    """What a judgement learned of a model beside that it may be recorded."""

    precision: Datatype | None = None  # the coarsest float datatype that the step computes in
    floats_to_integers: bool = False  # made-up magnitudes could be made-up indices
    drift: Mapping[str, float] = field(default_factory=dict)  # what rounding does to each float output, as a relative distance
    named: frozenset[int] = frozenset()  # integers of its code: sizes at which it may branch


class Judge:
    """Judges the variants of one model, all on the same throw-away instance."""

    def __init__(self, backend: Backend, lane: Lane, fresh: Callable[[], LoadedModel], sampler: Sampler) -> None:
        self._backend = backend
        self._lane = lane
        self._fresh = fresh
        self._sampler = sampler
        self._instance = self._load()
        self._named = named_integers(self._instance.module)
        self._shape = _trial_shape(self._instance.spec)

    def _load(self) -> LoadedModel:
        """A throw-away instance. Loading may have seeded the global generators: requests must not get the same numbers again."""
        instance = self._fresh()
        torch.seed()
        return instance

    def judge_all(self) -> dict[Variant, Character | CaptureRefused]:
        """The verdict on each variant. Raises NotYetProvable where there are no values to try."""
        judged: dict[Variant, Character | CaptureRefused] = {}
        for variant in self._instance.spec.all_variants():
            try:
                judged[variant] = self.judge(variant)
            except CaptureRefused as refusal:
                judged[variant] = refusal
        sound = {variant: character for variant, character in judged.items() if isinstance(character, Character)}
        return judged | self._with_drift(sound)

    def judge(self, variant: Variant) -> Character:
        """Raises CaptureRefused where a replay could not do what eager does, NotYetProvable where there are no values to try."""
        instance, shape = self._instance, self._shape
        module = instance.module
        a, b, c = (self._sampler.draw(shape, Kind.NATURAL, seed) for seed in (1, 2, 3))
        refuse_training(module)
        slots = self._slots(instance)
        untouched = self._snapshot()
        for inputs in (a, b):
            self._run(variant, inputs, slots)
        refuse_training(module)
        _refuse_hooks(instance)
        before = self._snapshot()
        _refuse_first_writes(untouched, before)
        runs = [self._run(variant, inputs, slots) for inputs in (a, b, a, c, a)]
        after = self._snapshot()
        witness = Witness()
        runs.append(self._run(variant, a, slots, witness))
        if witness.higher_order:
            raise Blocker(*why_no_callback(witness.higher_order)).refusal()
        comparer = Comparer(instance.spec.outputs, instance.spec.batch_axis, witness.precision, instance.spec.tolerance)
        _refuse_writes(runs, before, after)
        self._lane.submit(slots.refuse_writes).result()
        _refuse_randomness(runs, witness, comparer)
        if slots:
            self._lane.submit(slots.disturb).result()
            if _differ(comparer, runs[0], self._run(variant, a, slots)):
                raise CaptureRefused(RefusalReason.STATEFUL, "the answer depends on state slots that the request does not name")
        if untouched.changes(before):
            self._compare_with_another(variant, comparer, [(a, runs[0]), (c, runs[3])])
        return Character(witness.precision, witness.floats_to_integers, named=self._named)

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            self._instance.module, exempt=frozenset(self._instance.state), in_thread=lambda call: self._lane.submit(call).result()
        )

    def _slots(self, instance: LoadedModel) -> TrialSlots:
        rows = self._shape.get(instance.spec.batch_axis, 1)
        return self._lane.submit(lambda: TrialSlots(instance, rows)).result()

    def _run(self, variant: Variant, inputs: Inputs, slots: TrialSlots, witness: Witness | None = None) -> Run:
        return self._run_on(self._instance, variant, inputs, self._shape, slots, witness)

    def _run_on(
        self, instance: LoadedModel, variant: Variant, inputs: Inputs, shape: Shape, slots: TrialSlots, witness: Witness | None = None
    ) -> Run:
        def work() -> Run:
            slots.reset()
            return observe(self._backend, instance, variant, inputs, shape, witness)

        try:
            return self._lane.submit(work).result()
        except ModelRaised as error:
            raise CaptureRefused(RefusalReason.CAPTURE_ERROR, f"the model raised in a trial run: {error}") from error

    def _with_drift(self, judged: Mapping[Variant, Character]) -> dict[Variant, Character]:
        """Move every weight by a rounding error of the step's precision: what comes of it is what other kernels may make of the step.

        Last of all, since it spoils the instance.
        """
        spec = self._instance.spec
        inputs = self._sampler.draw(self._shape, Kind.NATURAL, 1)
        slots = self._slots(self._instance)
        before = {variant: self._run(variant, inputs, slots) for variant in judged}
        precisions = [character.precision for character in judged.values() if character.precision is not None]
        if precisions:
            self._lane.submit(partial(_round_weights, self._instance, reduce(coarser, precisions))).result()
        found = {}
        for variant, character in judged.items():
            comparer = Comparer(spec.outputs, spec.batch_axis, character.precision, spec.tolerance)
            comparer.learn_drift(
                before[variant].outputs, self._run(variant, inputs, slots).outputs, comparer.scales(before[variant].outputs)
            )
            found[variant] = replace(character, drift=comparer.drift)
        return found

    def _compare_with_another(self, variant: Variant, comparer: Comparer, expected: Sequence[tuple[Inputs, Run]]) -> None:
        """Warm another instance up as a recording would, at another size: what it built then must not show in its answers.

        Nor must what a larger size builds show in those of a smaller one.
        """
        other = self._load()
        smaller = {axis: max(1, size - 1) for axis, size in self._shape.items()}
        slots = self._slots(other)
        few, early = self._sampler.draw(smaller, Kind.NATURAL, 1), None
        try:
            self._run_on(other, variant, self._sampler.safe(smaller), smaller, slots)
            early = self._run_on(other, variant, few, smaller, slots)
        except CaptureRefused:  # a size that the model does not take builds nothing
            self._run_on(other, variant, self._sampler.safe(self._shape), self._shape, slots)
        for inputs, run in expected:
            if _differ(comparer, run, self._run_on(other, variant, inputs, self._shape, slots)):
                what = "what the model builds on its first call depends on that call's values"
                raise Blocker(RefusalReason.STATEFUL, what=what, advice="Build it when the model is made, or from shapes alone.").refusal()
        if early is not None and _differ(comparer, early, self._run_on(other, variant, few, smaller, slots)):
            what = "the answer to a small request depends on larger ones that came before"
            raise Blocker(RefusalReason.STATEFUL, what=what, advice="Derive sizes from the request's own inputs.").refusal()


def _round_weights(model: LoadedModel, precision: Datatype) -> None:
    generator = torch.Generator(model.device).manual_seed(5)
    unit = torch.finfo(TORCH_DTYPES[precision]).eps
    with torch.no_grad():
        for tensor in (*model.module.parameters(), *model.module.buffers()):
            if tensor.is_floating_point() and tensor.element_size() > 1 and not any(tensor is state for state in model.state.values()):
                signs = torch.randint(0, 2, tensor.shape, generator=generator, dtype=torch.int8, device=tensor.device)
                tensor.mul_((1 + (2 * signs - 1) * max(unit, torch.finfo(tensor.dtype).eps)).to(tensor.dtype))


def _refuse_hooks(model: LoadedModel) -> None:
    hooks = foreign_hooks(model.module)
    if hooks:
        what = f"forward hook {hooks[0]}: a replay would skip its Python"
        raise Blocker(RefusalReason.STATEFUL, what=what, advice="Do its work in forward(), or remove it.").refusal()


def _refuse_first_writes(untouched: Snapshot, before: Snapshot) -> None:
    for change in untouched.changes(before, new_ones=False):
        if change.reason is RefusalReason.PARAMETER_MUTATION:
            raise change.refusal(f"the first call writes to {change.path}")


def _refuse_writes(runs: Sequence[Run], before: Snapshot, after: Snapshot) -> None:
    for run in runs:
        if run.wrote_to:
            raise CaptureRefused(RefusalReason.INPUT_MUTATION, f"writes to input {run.wrote_to}")
    changes = before.changes(after)
    parameters = [change for change in changes if change.reason is RefusalReason.PARAMETER_MUTATION]
    for change in parameters or changes:
        raise change.refusal(f"{change.path} changes from call to call")


def _refuse_randomness(runs: Sequence[Run], witness: Witness, comparer: Comparer) -> None:
    """`runs` are of a, b, a, c, a, and a. A generator counts only where every run moved it: other threads draw, too."""
    differs = any(_differ(comparer, runs[0], runs[at]) for at in (2, 4, 5))
    drew = set.intersection(*(run.drew_from for run in runs)) | witness.drew_from
    if differs or witness.clock:
        causes = [f"random numbers of {', '.join(sorted(drew))}"] if drew else []
        causes += [f"{witness.clock} reads the clock"] if witness.clock else []
        cause = " and ".join(causes) or "two runs of one input differ, for a reason that was not found"
        raise CaptureRefused(RefusalReason.NONDETERMINISTIC, cause)
    if drew:
        raise CaptureRefused(RefusalReason.RNG, f"draws from {', '.join(sorted(drew))}")


def _differ(comparer: Comparer, one: Run, other: Run) -> bool:
    return bool(comparer.problem(one.outputs, other.outputs, comparer.scales(one.outputs)))


def _trial_shape(spec: ModelSpec) -> Shape:
    """A small shape of a few rows that the model is sure to take: sizes of its buckets."""
    shape = {axis.name: axis.sizes[0] for axis in spec.axes}
    batch = spec.axis(spec.batch_axis)
    if batch is not None:
        shape[batch.name] = next((size for size in batch.sizes if size >= 3), batch.max)
        if spec.state:
            shape[batch.name] = min(shape[batch.name], *(state.slots for state in spec.state))
    return shape
