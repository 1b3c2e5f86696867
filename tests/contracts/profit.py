"""What `--profit` says of models built to have one cause each. Collected for the CPU and for CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from service.doctor.diagnosis import Doctor
from service.doctor.patient import Patient
from service.doctor.profit import Cause, Profit, profit
from service.models.loaded import LoadedModel
from service.tensors import Datatype
from tests.backends import Rig, model, opened
from tests.modules import profits


@dataclass(frozen=True)
class Made:
    """A constructed model: its module, the width of its input, its one bucket, and the request."""

    module: nn.Module
    width: int
    bucket: int
    rows: int
    steps: int = 1_000_000


def constructed(cause: Cause, device: str) -> Made:
    """Sizes at which a device is busy differ by a factor of thousands between devices."""
    gpu = device != "cpu"
    match cause:
        case Cause.DEVICE_BOUND:
            return Made(profits.Heavy(64, 4096, 8), 64, 2048, 2048) if gpu else Made(profits.Heavy(64, 256, 8), 64, 256, 256)
        case Cause.COPY_BOUND:
            return Made(profits.Carries(), 1 << 20, 4, 4) if gpu else Made(profits.Carries(), 1 << 19, 4, 4)
        case Cause.PADDING:
            return Made(profits.Heavy(64, 2048, 8), 64, 4096, 1) if gpu else Made(profits.Heavy(64, 128, 8), 64, 256, 1)
        case Cause.SMALL_REGION:
            return Made(profits.StopsOften(40), 64, 2, 2)
        case Cause.CAPTURE_UNPAID:
            return Made(profits.Adds(200), 64, 2, 2, steps=1)
        case Cause.NONE:
            return Made(profits.Adds(200), 64, 2, 2)


def examined(rig: Rig, made: Made) -> Profit:
    """Diagnosis and profit of a constructed model."""

    def load() -> LoadedModel:
        return model(
            rig,
            made.module,
            inputs={"x": (Datatype.FP32, ["batch", made.width])},
            outputs={"y": (Datatype.FP32, ["batch", 4])},
            axes={"batch": (made.bucket,)},
        )

    doctor = Doctor(rig.backend, load)
    patient = Patient.at(load(), (), {"batch": made.rows})
    diagnosis, recording = doctor.examine(patient)
    found = profit(doctor.bench, patient, diagnosis, recording, made.steps)
    doctor.lane.close()
    if recording is not None:
        doctor.capturer.submit(recording.close).result()
    doctor.capturer.close()
    return found


@pytest.fixture
def rig(device: str) -> Iterator[Rig]:
    """A backend with its threads."""
    torch.manual_seed(6)
    with opened(device) as rig:
        yield rig


@pytest.mark.parametrize("cause", list(Cause))
def test_the_main_cause_is_named(rig: Rig, device: str, cause: Cause) -> None:
    """One model for each cause, and one of which a graph pays."""
    found = examined(rig, constructed(cause, device))
    assert found.cause is cause, found
    assert cause is not Cause.NONE or (found.break_even is not None and found.break_even > 0)
