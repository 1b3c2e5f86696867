"""`graphcache doctor --profit`: what a replay's time is made of, and the one main cause why it is not faster than the eager run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod

from service.backends.base import Recording
from service.doctor.calibration import Bench, calibrate
from service.doctor.diagnosis import Diagnosis
from service.doctor.measuring import Work
from service.doctor.patient import Patient
from service.models.spec import InputSpec, OutputSpec, Shape
from service.models.values import concrete

MIN_GAIN = 0.05  # of the eager run; less is noise
SMALL_REGION = 0.1  # of the working operations: whatever a graph of so few saves, the rest decides


class Cause(StrEnum):
    """Why a graph is not worth having."""

    NONE = "none"
    DEVICE_BOUND = "device_bound"
    COPY_BOUND = "copy_bound"
    PADDING = "padding"
    SMALL_REGION = "small_region"
    CAPTURE_UNPAID = "capture_unpaid"


EXPLANATIONS: dict[Cause, str] = {
    Cause.NONE: "a graph pays, as far as the step can be captured",
    Cause.DEVICE_BOUND: "the device works nearly all the time: there is hardly a launch to save",
    Cause.COPY_BOUND: "copying inputs and outputs takes most of the time, with a graph or without",
    Cause.PADDING: "the bucket is so much larger than the request that padding costs more than the graph saves",
    Cause.SMALL_REGION: "what can be captured is too small a part of the step",
    Cause.CAPTURE_UNPAID: "replays are faster, but there are too few of them to pay for the capture",
}


@dataclass(frozen=True, slots=True)
class Parts:
    """What a replay's time is predicted to be made of, in seconds."""

    launch_s: float
    work_s: float  # at the request's own size
    padding_s: float  # work and copies beyond it
    copies_s: float  # of the request's own bytes

    @property
    def total_s(self) -> float:
        """The whole replay."""
        return self.launch_s + self.work_s + self.padding_s + self.copies_s


@dataclass(frozen=True, slots=True)
class Profit:
    """Measured and predicted times of one step, and what follows."""

    work: Work  # at the request's own size
    eager_s: float  # with the worker's copies
    step_s: float  # the model's own code, until the device is done
    submit_s: float  # what the host needs for it
    parts: Parts
    measured_s: float | None  # a replay, where the step can be captured
    saved_s: float  # by launches that a graph does not make, less padding; for each request
    capture_s: float | None
    steps: int  # requests that a graph is expected to serve
    region: float  # share of the working operations that can be in one graph
    cause: Cause

    @property
    def predicted_s(self) -> float:
        """A replay."""
        return self.parts.total_s

    @property
    def idle(self) -> float:
        """Share of the model's own time in which the device has nothing to do."""
        return max(0.0, 1.0 - self.work.seconds / self.step_s)

    @property
    def break_even(self) -> float | None:
        """Requests after which a capture is paid for; None where it never is, or where nothing was captured."""
        return self.capture_s / self.saved_s if self.capture_s is not None and self.saved_s > 0 else None


def profit(bench: Bench, patient: Patient, diagnosis: Diagnosis, recording: Recording | None, steps: int) -> Profit:
    """Measure and judge. Takes some seconds."""
    padded = replace(patient, sizes=patient.bucket.as_dict())
    spec, on_cpu = patient.spec, patient.model.device.type == "cpu"
    bytes_in, bytes_out = (_bytes(tensors, padded.sizes) for tensors in (spec.inputs, spec.outputs))
    learned = calibrate(bench, patient.model.device, bytes_in, bytes_out)
    work = bench.work(patient)
    full = work if padded.sizes == patient.sizes else bench.work(padded)
    real = (_bytes(spec.inputs, patient.sizes) + _bytes(spec.outputs, patient.sizes)) / max(bytes_in + bytes_out, 1)
    parts = Parts(
        launch_s=learned.fixed_s + full.count * max(learned.per_operation_s, 0.0),
        work_s=max(0.0, work.seconds + work.count * min(learned.per_operation_s, 0.0)),
        padding_s=max(0.0, full.seconds - work.seconds) + learned.bulk_s * (1.0 - real),
        copies_s=learned.bulk_s * real,
    )
    times = bench.times(patient, recording)
    found = Profit(
        work=work,
        eager_s=times.eager_s,
        step_s=times.step_s,
        submit_s=max(0.0, times.step_s - parts.work_s) if on_cpu else bench.submitted(patient),
        parts=parts,
        measured_s=times.replay_s,
        saved_s=times.step_s + learned.handling_s - _without_copies(parts, times.replay_s),
        capture_s=diagnosis.capture_s,
        steps=steps,
        region=_region(diagnosis),
        cause=Cause.NONE,
    )
    return replace(found, cause=judge(found))


def judge(found: Profit) -> Cause:
    """The one main cause: what takes most of a replay that does not pay; else what keeps one that would from doing so."""
    parts, least = found.parts, MIN_GAIN * found.eager_s
    if found.region < SMALL_REGION:
        return Cause.SMALL_REGION
    if found.saved_s < least:
        shares = {
            Cause.DEVICE_BOUND: parts.work_s,
            Cause.COPY_BOUND: parts.copies_s,
            Cause.PADDING: parts.padding_s,
            Cause.SMALL_REGION: parts.launch_s,
        }
        return max(shares, key=lambda cause: shares[cause])
    if found.saved_s * found.region < least:
        return Cause.SMALL_REGION
    if found.break_even is not None and found.break_even > found.steps:
        return Cause.CAPTURE_UNPAID
    return Cause.NONE


def _without_copies(parts: Parts, measured_s: float | None) -> float:
    """A replay, measured where that tells more: bulky copies vary more than all the rest."""
    if measured_s is None or parts.copies_s > parts.total_s / 2:
        return parts.total_s - parts.copies_s
    return measured_s - parts.copies_s


def _region(diagnosis: Diagnosis) -> float:
    if diagnosis.capturable:
        return 1.0
    return max((tried.segment.working for tried in diagnosis.segments if not tried.problem), default=0) / max(diagnosis.operations, 1)


def _bytes(tensors: tuple[InputSpec, ...] | tuple[OutputSpec, ...], sizes: Shape) -> int:
    known = [spec for spec in tensors if all(part in sizes for part in spec.shape if isinstance(part, str))]
    return sum(prod(concrete(spec.shape, sizes)) * spec.datatype.itemsize for spec in known)
