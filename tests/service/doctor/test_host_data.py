from __future__ import annotations

import pytest
import torch

from cachepolicy.reasons import RefusalReason
from service.doctor.hostdata import HostData
from service.doctor.patient import Patient
from service.doctor.tracing import Crossing, traces
from tests.backends import Rig, opened
from tests.modules import blocked


def crossing(rig: Rig, module: blocked.CopiesFromHost) -> Crossing | None:
    """What a step takes from host memory to its device. The meta device, which computes nothing, stands for any accelerator."""
    model = rig.plain_model(module)
    model.device = torch.device("meta")
    model.module.to(model.device)
    first, _ = traces(Patient.at(model, (), {}))
    found = [entry for entry in first.found if entry.blocker.reason is RefusalReason.CPU_TENSOR]
    assert len(found) == 1
    assert found[0].blocker.place is not None
    return found[0].crossing


@pytest.mark.parametrize("module", blocked.MOVABLE)
def test_host_memory_that_nobody_reads_or_changes_is_movable(module: type[blocked.CopiesFromHost]) -> None:
    """Constants, literals, and a tensor that the model holds: with their bytes."""
    with opened("cpu") as rig:
        assert crossing(rig, module()) == Crossing(bytes=16, fault="")


@pytest.mark.parametrize(("module", "fault"), blocked.NOT_MOVABLE)
def test_host_memory_in_use_is_not_movable(module: type[blocked.CopiesFromHost], fault: str) -> None:
    """Read, changed, shared, random, or other from run to run: the report says which."""
    with opened("cpu") as rig:
        assert crossing(rig, module()) == Crossing(bytes=16, fault=fault)


def test_a_list_of_indices_is_a_copy_from_the_host() -> None:
    """`x[:, [1, 0]]` takes two indices to the device in each step."""

    class Reorders(blocked.CopiesFromHost):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, [3, 1, 2, 0]]

    with opened("cpu") as rig:
        assert crossing(rig, Reorders()) == Crossing(bytes=32, fault="")


def test_reading_a_result_is_reading_its_sources() -> None:
    """And a source that was read can't be moved either, nor what was made of it."""
    data = HostData(held=[1])
    data.made(2, [1])
    data.made(3, [2])
    data.made(4, [1])
    data.read(3)
    assert [data.fault(storage) for storage in (1, 2, 3, 4)] == ["the host reads it"] * 4


def test_a_change_concerns_what_is_made_from_it_not_what_it_was_made_from() -> None:
    """Writing to a copy leaves the original alone."""
    data = HostData(held=[1])
    data.made(2, [1])
    data.made(3, [2])
    data.changed(2)
    assert [data.fault(storage) for storage in (1, 2, 3)] == ["", "the host changes it", "the host changes it"]


def test_memory_of_unknown_origin_is_not_movable() -> None:
    """Neither made in the step nor held by the model."""
    data = HostData(held=[])
    data.made(2, [9])
    assert data.fault(2) == "it was made outside the step"
