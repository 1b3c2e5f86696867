from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from cachepolicy.reasons import RefusalReason
from service.backends.calls import Calls
from service.backends.watch import Watch
from service.doctor.calls import watch_waits
from service.doctor.patient import Patient
from service.errors import CaptureRefused
from tests.backends import opened
from tests.contracts.doctor import examine
from tests.modules import blocked


class Pad:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[RefusalReason, str]] = []

    def noted(self) -> int:
        """How many calls were told."""
        return len(self.calls)

    def call_blocked(self, reason: RefusalReason, call: str, what: str = "", host: tuple[str, int] | None = None) -> None:
        """One more."""
        self.calls.append((reason, call))

    def host_read(self, tensor: torch.Tensor) -> None:
        """Not looked at."""


def test_waits_are_noted_carried_out_and_given_back() -> None:
    """The call happens all the same; afterwards the function is the one it was, even when the step raised."""
    waited: list[int] = []
    library, pad = SimpleNamespace(wait=waited.append), Pad()
    original = library.wait

    def step() -> None:
        with watch_waits(pad, [(library, "wait", "library.wait"), (library, "absent", "")]):
            library.wait(5)
            raise RuntimeError("the step")

    with pytest.raises(RuntimeError, match="the step"):
        step()
    assert waited == [5]
    assert pad.calls == [(RefusalReason.SYNC, "library.wait")]
    assert library.wait == original
    library.wait(6)
    assert len(pad.calls) == 1


def test_a_list_of_indices_crosses_to_the_device_in_each_step() -> None:
    """Torch makes a tensor of it on the host; a slice or a tensor of indices crosses nothing."""
    pad, x = Pad(), torch.empty(2, 3, device="meta")
    with Calls(pad, "meta"):
        x[:, [1, 0]].add_(1)
        x[0, 1:].add_(1)
        x[:, torch.zeros(2, dtype=torch.int64, device="meta")].add_(1)
        x[[0, 1]] = 0
    assert pad.calls == [(RefusalReason.CPU_TENSOR, "Tensor.__getitem__"), (RefusalReason.CPU_TENSOR, "Tensor.__setitem__")]


def test_the_worker_refuses_a_call_in_the_doctors_words() -> None:
    """What is no operation is refused with its place and hint, as the doctor lists it."""
    with opened("cpu") as rig:
        model = rig.plain_model(blocked.MakesAList())
        inputs = Patient.at(model, (), {}).inputs(1)
        with pytest.raises(CaptureRefused) as refused, torch.no_grad(), Watch(model, inputs) as watch, Calls(watch, "cpu"):
            model.forward(inputs, ())
        found = examine(rig, blocked.MakesAList)
    assert refused.value.detail == found.obstacles[0].blocker.detail
