"""The story of `graphcache doctor`: run the step under watch, list what blocks, try what lies between, then try the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from cachepolicy.reasons import RefusalReason
from service.backends.base import Backend, Recording
from service.backends.blockers import Blocked, Blocker
from service.backends.watch import training_parts
from service.doctor.calibration import Bench
from service.doctor.patient import Patient
from service.doctor.segments import Extent, Segment, bound_by_values, kept_out, merged, segments
from service.doctor.serving import Serving
from service.doctor.tape import try_segments
from service.doctor.tracing import Crossing, Trace, traces
from service.errors import CaptureRefused, NotYetProvable
from service.lane import LaneThread
from service.models.loaded import LoadedModel
from service.verification import Proof

_OF_TRAINING = (RefusalReason.STATEFUL, RefusalReason.NONDETERMINISTIC, RefusalReason.RNG)
TRIED = 16  # the largest segments, which are recorded to prove that they can be


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A blocker as it is reported: how often the step meets it, and how many working operations it keeps out of a graph."""

    blocker: Blocker
    times: int
    keeps_out: int
    crossing: Crossing | None = None


@dataclass(frozen=True, slots=True)
class Tried:
    """A segment, and why it can't be captured by itself: empty where it was captured and replayed right, None where it was not tried."""

    segment: Segment
    problem: str | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the doctor found. `note` tells of a proof that could not be carried out."""

    operations: int  # those that launch work
    obstacles: tuple[Obstacle, ...]
    segments: tuple[Tried, ...]
    capture_s: float | None = None  # capture and proof, where there was one
    note: str = ""
    serving: Serving | None = None  # what the whole step's graph can serve, where that was proven

    @property
    def capturable(self) -> bool:
        """Whether a graph of the whole step may exist."""
        return not self.obstacles


class Doctor:
    """Examines models on one device, in the two threads that a worker has."""

    def __init__(self, backend: Backend, fresh: Callable[[], LoadedModel]) -> None:
        self._backend = backend
        self._fresh = fresh
        self.lane = LaneThread(backend.lane, "lane")
        self.capturer = LaneThread(backend.capturer, "capturer")
        self.bench = Bench(backend, self.lane, self.capturer)

    def close(self) -> None:
        """Let go of the device."""
        self.lane.close()
        self.capturer.close()
        self._backend.close()

    def examine(self, patient: Patient) -> tuple[Diagnosis, Recording | None]:
        """Never stops at a blocker. The recording is the whole step's, where there is one. Raises ModelRaised if eager itself does."""
        self.lane.submit(
            lambda: self._backend.run_eager(patient.model, patient.variant, patient.batch(1))
        ).result()  # builds what is built late
        one, two = self.lane.submit(lambda: traces(patient)).result()
        bound = bound_by_values(one, two)
        obstacles = [Obstacle(found.blocker, times, share, found.crossing) for found, times, share in merged(one.found, kept_out(one))]
        everything = Extent(one).total
        obstacles = _with_training(patient, obstacles, everything)
        recording, note, taken, serving = None, "", None, None
        if not obstacles:
            started = perf_counter()
            try:
                recording, serving, note = self._record(patient)
            except CaptureRefused as refusal:
                obstacles = [Obstacle(_told_by(refusal), 1, everything)]
            else:
                taken = perf_counter() - started
        pieces = segments(one, bound) if obstacles else []
        return Diagnosis(everything, tuple(obstacles), tuple(self._try(patient, one, pieces)), taken, note, serving), recording

    def _record(self, patient: Patient) -> tuple[Recording, Serving | None, str]:
        """Capture the whole step and prove it, as the worker would. Raises CaptureRefused."""
        proof = Proof(self._backend, lambda _: self._fresh())
        model, variant = patient.model, patient.variant

        def prove() -> tuple[Recording, Serving | None, str]:
            note = ""
            try:
                proof.judge(model, variant, self.lane)
            except NotYetProvable as error:
                note = str(error)
            recording = self._backend.record(model, variant, patient.bucket)
            if note:
                return recording, None, note
            try:
                verdict = proof.verify(model, variant, recording, self.lane)
                serving = Serving(verdict, self._rows(proof, patient), model.spec.rows)
            except NotYetProvable as error:
                return recording, None, str(error)
            except BaseException:
                self.lane.barrier()
                recording.close()
                raise
            return recording, serving, note

        return self.capturer.submit(prove).result()

    def _rows(self, proof: Proof, patient: Patient) -> bool | None:
        """Whether rows are independent; None where there are none to tell apart."""
        spec = patient.spec
        axis = spec.axis(spec.batch_axis)
        if axis is None or axis.max < 2 or spec.state:
            return None
        return proof.rows_independent(patient.model, patient.variant, self.lane)

    def _try(self, patient: Patient, trace: Trace, pieces: list[Segment]) -> list[Tried]:
        tried, rest = pieces[:TRIED], pieces[TRIED:]
        ranges = [(piece.first, piece.end) for piece in tried]
        names = [operation.name for operation in trace.operations]
        problems = self.capturer.submit(lambda: try_segments(patient, 1, ranges, names)).result() if tried else []
        return [Tried(piece, problem) for piece, problem in zip(tried, problems, strict=True)] + [Tried(piece, None) for piece in rest]


def _with_training(patient: Patient, obstacles: list[Obstacle], everything: int) -> list[Obstacle]:
    """Parts in training mode come first; what else was found in them (statistics, randomness) is only what comes of that."""
    parts = {blocker.module: blocker for blocker in training_parts(patient.model.module)}
    others = [entry for entry in obstacles if entry.blocker.module not in parts or entry.blocker.reason not in _OF_TRAINING]
    return [Obstacle(blocker, 1, everything) for blocker in parts.values()] + others


def _told_by(refusal: CaptureRefused) -> Blocker:
    """What only the capture or the proof found out."""
    if isinstance(refusal, Blocked):
        return refusal.blocker
    return Blocker(refusal.reason, what=refusal.detail)
