"""What the doctor finds, whatever the device. Collected by tests/service/doctor/test_examination.py (CPU) and tests/gpu/test_doctor.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from cachepolicy.reasons import RefusalReason
from service.doctor.diagnosis import Diagnosis, Doctor
from service.doctor.patient import Patient
from service.errors import CaptureRefused
from service.models.loaded import LoadedModel
from tests.backends import Rig, opened
from tests.modules import blocked


@pytest.fixture
def rig(device: str) -> Iterator[Rig]:
    """A backend with its threads."""
    with opened(device) as rig:
        yield rig


def examine(rig: Rig, make: Callable[[], nn.Module], **sizes: int) -> Diagnosis:
    """The diagnosis of a model with weights of its own."""

    def load() -> LoadedModel:
        torch.manual_seed(4)
        return rig.plain_model(make())

    doctor = Doctor(rig.backend, load)
    diagnosis, recording = doctor.examine(Patient.at(load(), (), sizes))
    doctor.lane.close()
    if recording is not None:
        doctor.capturer.submit(recording.close).result()
    doctor.capturer.close()
    return diagnosis


def test_three_blockers_are_listed_and_what_lies_between_is_captured(rig: Rig) -> None:
    """Exactly three, by module path and line; the four segments around them are captured and replay right."""
    found = examine(rig, blocked.ThreeBlockers)
    assert not found.capturable
    assert [entry.blocker.module for entry in found.obstacles] == ["layers.0.attn", "layers.2.attn", "layers.4.attn"]
    lines = {str(entry.blocker.place) for entry in found.obstacles}
    assert len(lines) == 1
    assert lines.pop().startswith("blocked.py:")
    assert {entry.blocker.reason for entry in found.obstacles} == {RefusalReason.SYNC}
    assert len(found.segments) == 4
    assert [tried.problem for tried in found.segments] == [""] * 4
    assert [tried.segment.working for tried in found.segments] == sorted((tried.segment.working for tried in found.segments), reverse=True)


def test_every_operation_is_in_a_segment_or_kept_out_by_one_blocker(rig: Rig) -> None:
    """What comes before the first blocker, and what each keeps out, is the whole step."""
    found = examine(rig, blocked.ThreeBlockers)
    first = next(tried.segment for tried in found.segments if tried.segment.first == 0)
    assert first.working + sum(entry.keeps_out for entry in found.obstacles) == found.operations


@pytest.mark.parametrize(("module", "reason", "operation"), blocked.BLOCKED, ids=lambda value: getattr(value, "__name__", str(value)))
def test_each_kind_of_blocker_is_named(rig: Rig, module: type[nn.Module], reason: RefusalReason, operation: str) -> None:
    """One model for each reason: one obstacle, the reason, the operation, and a line of the model's code."""
    found = examine(rig, module)
    assert [entry.blocker.reason for entry in found.obstacles] == [reason], [entry.blocker.detail for entry in found.obstacles]
    blocker = found.obstacles[0].blocker
    assert blocker.operation.startswith(operation)
    if reason is not RefusalReason.TRAINING_MODE:
        assert blocker.place is not None
        assert blocker.place.file.endswith("blocked.py")
    assert all(tried.problem == "" for tried in found.segments)


def test_a_value_that_goes_through_numpy_is_a_read(rig: Rig) -> None:
    """`.cpu().numpy()` reads the device; what comes back is host memory that can't be moved."""
    found = examine(rig, blocked.GoesThroughNumpy)
    assert found.obstacles[0].blocker.reason is RefusalReason.SYNC
    assert all(entry.crossing is None or entry.crossing.fault for entry in found.obstacles)


def test_a_list_of_values_is_a_read(rig: Rig) -> None:
    """`.tolist()` is found once, with its line."""
    found = examine(rig, blocked.MakesAList)
    assert [entry.blocker.reason for entry in found.obstacles] == [RefusalReason.SYNC]
    assert found.obstacles[0].blocker.place is not None
    assert found.obstacles[0].blocker.place.function == "middle"


def test_a_loop_over_one_line_is_one_obstacle_met_several_times(rig: Rig) -> None:
    """The same operation at the same place in the same module is listed once, with its count."""

    class Loops(blocked.Base):
        def middle(self, h: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                h = h.cos() if h.sum().item() < 1e30 else h.sin()
            return h

    found = examine(rig, Loops)
    assert [entry.times for entry in found.obstacles] == [3]


def test_operations_that_use_a_value_read_on_the_host_are_in_no_segment(rig: Rig) -> None:
    """`h * h.mean().item()` has the value as an operand: a segment with it would repeat the old one for ever."""
    found = examine(rig, blocked.Scales)
    inside = sum(tried.segment.working for tried in found.segments)
    assert inside == found.operations - 2  # the read, and the product


def test_a_clean_model_has_no_obstacle(rig: Rig) -> None:
    """It is captured and proven, and says what that took."""
    found = examine(rig, blocked.Base)
    assert found.capturable, found.obstacles
    assert found.capture_s is not None
    assert not found.note
    assert found.segments == ()


def test_what_only_the_capture_finds_out_is_told_with_its_place(rig: Rig) -> None:
    """A model that takes another path from call to call, and one that raises when it is recorded."""

    class Flips(blocked.Base):
        def __init__(self) -> None:
            super().__init__()
            self.odd = False

        def middle(self, h: torch.Tensor) -> torch.Tensor:
            self.odd = not self.odd
            return h if self.odd else h.cos()

    found = examine(rig, Flips)
    assert [entry.blocker.reason for entry in found.obstacles] == [RefusalReason.STATEFUL]


def test_the_refusal_says_what_the_doctor_says(rig: Rig) -> None:
    """A request's refusal detail and the doctor's first blocker are the same words: operation, place, hint."""
    found = examine(rig, blocked.ThreeBlockers)
    model = rig.plain_model(blocked.ThreeBlockers())
    with pytest.raises(CaptureRefused) as refused:
        rig.record(model, Patient.at(model, (), {}).bucket)
    assert refused.value.detail == found.obstacles[0].blocker.detail
    assert refused.value.detail.endswith(RefusalReason.SYNC.hint)


def test_an_operator_that_calls_back_is_a_blocker_and_does_no_lasting_harm(rig: Rig) -> None:
    """torch.cond is listed with its line, and the model runs eagerly afterwards."""

    class Decides(blocked.Base):
        def middle(self, h: torch.Tensor) -> torch.Tensor:
            return torch.cond(h.sum() > 0, torch.sin, torch.cos, (h,))  # type: ignore[no-any-return]

    found = examine(rig, Decides)
    (entry,) = found.obstacles
    assert (entry.blocker.reason, entry.blocker.operation) == (RefusalReason.SYNC, "torch.cond")
    assert entry.blocker.place is not None
    assert entry.blocker.place.function == "middle"
    model = rig.plain_model(Decides())
    patient = Patient.at(model, (), {})
    with torch.no_grad():
        model.forward(patient.inputs(1), ())


def test_the_model_answers_as_before_after_an_examination(rig: Rig) -> None:
    """Nothing that was watched or patched stays behind."""
    model = rig.plain_model(blocked.ThreeBlockers())
    patient = Patient.at(model, (), {})

    def answer() -> torch.Tensor:
        return model.forward(patient.inputs(3), ())["y"].cpu()

    before = rig.lane.submit(answer).result()
    doctor = Doctor(rig.backend, lambda: model)
    doctor.examine(patient)
    doctor.lane.close()
    doctor.capturer.close()
    torch.testing.assert_close(rig.lane.submit(answer).result(), before)
