"""Runs a recording beside eager, on the lane: each run an item of its own, so that requests slip in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic, sleep
from typing import TypeVar

from cachepolicy.reasons import RefusalReason
from service.backends.base import Backend, Batch, Outputs, Padding, Part, Recording
from service.errors import CaptureRefused, DeviceLost, ModelRaised, OutOfDeviceMemory
from service.lane import Lane
from service.models.loaded import LoadedModel
from service.models.spec import Shape, Variant
from service.verification import slots
from service.verification.samples import Inputs, take_rows

T = TypeVar("T")

_REST = 19.0  # while requests come, pause that many times as long as was worked: lane and interpreter are theirs
_LONGEST_REST_S = 0.25


@dataclass(frozen=True, slots=True)
class Trial:
    """The inputs of one comparison, at their exact size."""

    inputs: Inputs
    shape: Shape

    @property
    def batch(self) -> Batch:
        """As one request."""
        return Batch([Part(self.inputs, self.shape)], self.shape)


class Runner:
    """Eager runs and replays for one proof. Counts them."""

    def __init__(self, backend: Backend, model: LoadedModel, variant: Variant, lane: Lane) -> None:
        self.runs = 0
        self._resumed = monotonic()
        self._ran = lane.ran
        self._backend = backend
        self._model = model
        self._variant = variant
        self._lane = lane
        self._scratch = slots.ScratchSlots(model) if model.spec.state else None

    def eager(self, trial: Trial) -> Outputs | ModelRaised:
        """Eager's answer at the exact size, or what the model raised."""
        return self._on_lane(partial(self._eager, trial))

    def compare(
        self, recording: Recording, trial: Trial, padding: Padding, expected: Outputs | ModelRaised | None
    ) -> tuple[Outputs | ModelRaised, Outputs | Exception, str]:
        """Eager's answer (run here where it is not given), the replay's, and what is wrong with the state afterwards."""
        if self._scratch is not None:
            return self._on_lane(partial(self._with_state, recording, trial, padding))
        if expected is None:
            expected = self.eager(trial)
        return expected, self.replay(recording, trial, padding), ""

    def replay(self, recording: Recording, trial: Trial, padding: Padding) -> Outputs | Exception:
        """The recording's answer, or what it raised."""
        return self._on_lane(partial(self._replay, recording, trial, padding))

    def _eager(self, trial: Trial) -> Outputs | ModelRaised:
        self.runs += 1
        try:
            return self._backend.run_eager(self._model, self._variant, trial.batch)[0]
        except ModelRaised as error:
            return error
        except OutOfDeviceMemory as error:
            raise CaptureRefused(RefusalReason.OUT_OF_MEMORY, f"no memory to verify the graph: {error}") from error

    def _replay(self, recording: Recording, trial: Trial, padding: Padding) -> Outputs | Exception:
        self.runs += 1
        try:
            return recording.replay(trial.batch, padding)[0]
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 - eager may raise as well, then all is well
            return error

    def _with_state(self, recording: Recording, trial: Trial, padding: Padding) -> tuple[Outputs | ModelRaised, Outputs | Exception, str]:
        """In one item, since others write to the scratch slots, too."""
        scratch = self._scratch
        assert scratch is not None
        layout = slots.Layout(self._model.spec, recording.bucket[self._model.spec.batch_axis])
        rows = trial.shape[self._model.spec.batch_axis]
        placed = layout.place(take_rows(self._model.spec, trial.inputs, layout.order(rows)), rows)
        trial = Trial(placed, trial.shape)
        before, live = scratch.save(), scratch.live_digests()
        expected = self._eager(trial)
        after = scratch.save()
        scratch.restore(before)
        got = self._replay(recording, trial, padding)
        problem = slots.problem(after, scratch.save(), layout.used(rows))
        if scratch.live_digests() != live:
            raise CaptureRefused(RefusalReason.STATEFUL, "the recording writes to slots that it was not given")
        return expected, got, problem

    def _on_lane(self, work: Callable[[], T]) -> T:
        submitted = monotonic()

        def started() -> tuple[T, float]:
            waited = monotonic() - submitted
            return work(), waited

        result, waited = self._lane.submit(started).result()
        if self._lane.ran > self._ran + 1:  # others' items ran since the last one of ours
            worked = monotonic() - self._resumed - waited
            sleep(min(worked * _REST, _LONGEST_REST_S))
        self._resumed, self._ran = monotonic(), self._lane.ran
        return result
