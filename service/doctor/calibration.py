"""What a replay costs on this device beside the work itself, learned from three small models with known work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from cachepolicy.buckets import Bucket
from service.backends.base import Backend, Recording
from service.doctor.measuring import Forward, Work, submitted, synchronise, undisturbed, work_of
from service.doctor.patient import Patient
from service.lane import Lane
from service.models.loaded import TORCH_DTYPES, LoadedModel
from service.models.spec import AxisSpec, InputSpec, ModelSpec, OutputSpec
from service.tensors import Datatype

_SHORT, _LONG = 16, 192  # operations
_WIDTH = 1024  # elements: small enough that an operation is all launch


@dataclass(frozen=True, slots=True)
class Calibration:
    """Seconds. `per_operation_s` corrects the measured duration of each kernel or operation; on a CPU it is negative."""

    fixed_s: float  # of every replay
    per_operation_s: float
    handling_s: float  # of every eager run: what the worker does around the model's own code
    bulk_s: float  # copying the inputs and outputs of the patient's bucket, beyond what is fixed


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one step."""

    eager_s: float  # with the worker's copies
    step_s: float  # the model's own code, until the device is done
    replay_s: float | None  # with copies; None where there is no recording


class Bench:
    """Runs models on the lane and records them in the capturer's thread, for their times."""

    def __init__(self, backend: Backend, lane: Lane, capturer: Lane) -> None:
        self._backend = backend
        self._lane = lane
        self._capturer = capturer

    def forward(self, patient: Patient) -> Forward:
        """The model's own code on inputs that are on the device already; without waiting for it."""
        inputs = patient.inputs(1)
        return lambda: patient.model.forward(dict(inputs), patient.variant)

    def times(self, patient: Patient, recording: Recording | None) -> Times:
        """An eager run of the worker's, the model's own code alone, and a replay, taking turns."""
        batch, forward, device = patient.batch(1), self.forward(patient), patient.model.device

        def alone() -> None:
            forward()
            synchronise(device)

        runs: list[Callable[[], object]] = [lambda: self._backend.run_eager(patient.model, patient.variant, batch), alone]
        if recording is not None:
            runs.append(lambda: recording.replay(batch))
        eager, step, *replay = self._lane.submit(lambda: undisturbed(*runs)).result()
        return Times(eager, step, replay[0] if replay else None)

    def submitted(self, patient: Patient) -> float:
        """Seconds that the host needs to hand the model's own code to an idle device."""
        return self._lane.submit(lambda: submitted(self.forward(patient), patient.model.device)).result()

    def work(self, patient: Patient) -> Work:
        """What the model's own code asks of the device."""
        return self._lane.submit(lambda: work_of(self.forward(patient), patient.model.device)).result()

    def recorded(self, patient: Patient) -> Times:
        """All three times of a model that can surely be recorded."""
        recording = self._capturer.submit(lambda: self._backend.record(patient.model, patient.variant, patient.bucket)).result()
        try:
            return self.times(patient, recording)
        finally:
            self._capturer.submit(recording.close).result()


def calibrate(bench: Bench, device: torch.device, bytes_in: int, bytes_out: int) -> Calibration:
    """Takes about two seconds."""
    short, long = (_patient(_Chain(length), device, (Datatype.FP32, _WIDTH), (Datatype.FP32, _WIDTH)) for length in (_SHORT, _LONG))
    quick, slow = (bench.recorded(patient) for patient in (short, long))
    works = bench.work(short), bench.work(long)
    assert quick.replay_s is not None
    assert slow.replay_s is not None
    more = works[1].count - works[0].count
    slope = (slow.replay_s - quick.replay_s) / more
    per_operation = slope - (works[1].seconds - works[0].seconds) / more
    fixed = quick.replay_s - slope * works[0].count
    relay = bench.recorded(_patient(_Relay(bytes_out), device, (Datatype.UINT8, bytes_in), (Datatype.UINT8, bytes_out)))
    assert relay.replay_s is not None
    return Calibration(fixed, per_operation, max(0.0, quick.eager_s - quick.step_s), max(0.0, relay.replay_s - fixed))


def _patient(module: nn.Module, device: torch.device, taken: tuple[Datatype, int], given: tuple[Datatype, int]) -> Patient:
    spec = ModelSpec(
        "calibration",
        "1",
        (InputSpec("x", taken[0], ("batch", taken[1])),),
        (OutputSpec("y", given[0], ("batch", given[1])),),
        (AxisSpec("batch", 1, (1,)),),
    )
    name = f"calibration:{type(module).__name__}:{id(module)}"
    model = LoadedModel(spec, module.to(device).eval().requires_grad_(requires_grad=False), device, name, name)
    return Patient(model, (), {"batch": 1}, Bucket.of(batch=1))


class _Chain(nn.Module):
    """Additions one after the other."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.register_buffer("one", torch.ones(_WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.length):
            x = torch.add(x, self.get_buffer("one"))
        return x


class _Relay(nn.Module):
    """Takes bytes and gives others, without work."""

    def __init__(self, bytes_out: int) -> None:
        super().__init__()
        self.register_buffer("answer", torch.zeros(1, bytes_out, dtype=TORCH_DTYPES[Datatype.UINT8]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.get_buffer("answer")
