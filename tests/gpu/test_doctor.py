"""The examination on a CUDA device: the contract, and what only a device shows (streams, waits, host memory, a capture that fails)."""

from __future__ import annotations

import pytest
import torch

from cachepolicy.reasons import RefusalReason
from service.doctor.diagnosis import Obstacle
from tests.backends import Rig
from tests.contracts.doctor import *  # noqa: F403
from tests.contracts.doctor import examine
from tests.modules import blocked

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> str:
    """Where the contract runs."""
    return "cuda:0"


def only(obstacles: tuple[Obstacle, ...]) -> Obstacle:
    """The one obstacle."""
    assert len(obstacles) == 1, [entry.blocker.detail for entry in obstacles]
    return obstacles[0]


class WaitsForTheDevice(blocked.Base):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        torch.cuda.synchronize(h.device)
        return h


class WaitsForItsStream(blocked.Base):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        torch.cuda.current_stream(h.device).synchronize()
        return h


class WaitsForAnEvent(blocked.Base):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        event.synchronize()
        return h


@pytest.mark.parametrize(
    ("module", "call"),
    [
        (WaitsForTheDevice, "torch.cuda.synchronize"),
        (WaitsForItsStream, "torch.cuda.Stream.synchronize"),
        (WaitsForAnEvent, "torch.cuda.Event.synchronize"),
    ],
)
def test_waiting_for_the_device_is_named_with_its_line(rig: Rig, module: type[blocked.Base], call: str) -> None:
    """Not an operation, found all the same; the segments before and after it are captured."""
    found = examine(rig, module)
    blocker = only(found.obstacles).blocker
    assert (blocker.reason, blocker.operation) == (RefusalReason.SYNC, call)
    assert blocker.place is not None
    assert blocker.place.function == "middle"
    assert [tried.problem for tried in found.segments] == ["", ""]


class OnASideStream(blocked.Base):
    """Runs a layer beside another."""

    joins = True

    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[str, torch.cuda.Stream] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.streams:
            self.streams["side"] = torch.cuda.Stream(x.device)  # type: ignore[no-untyped-call]
        side, here = self.streams["side"], torch.cuda.current_stream(x.device)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            right = self.before(x)
        left = self.after(x)
        if self.joins:
            here.wait_stream(side)
            return torch.add(left, right)
        self.right = right
        return torch.tanh(left)


class NeverJoins(OnASideStream):
    joins = False


class OnTheDefaultStream(blocked.Base):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(torch.cuda.default_stream(h.device)):
            return torch.cos(h)


def test_a_joined_side_stream_is_no_obstacle(rig: Rig) -> None:
    """Forked by an event and joined by another: captured and proven."""
    found = examine(rig, OnASideStream)
    assert found.capturable, [entry.blocker.detail for entry in found.obstacles]


def test_a_side_stream_that_is_never_joined_is_named(rig: Rig) -> None:
    """With the first operation that nobody waits for."""
    found = examine(rig, NeverJoins)
    assert RefusalReason.UNJOINED_STREAM in {entry.blocker.reason for entry in found.obstacles}
    blocker = next(entry.blocker for entry in found.obstacles if entry.blocker.reason is RefusalReason.UNJOINED_STREAM)
    assert blocker.module == "before"


def test_work_on_the_default_stream_is_named(rig: Rig) -> None:
    """A capture would not even notice it."""
    blocker = only(examine(rig, OnTheDefaultStream).obstacles).blocker
    assert (blocker.reason, blocker.operation) == (RefusalReason.DEFAULT_STREAM, "aten.cos")


class RaisesInCapture(blocked.Base):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("does not like being captured")
        return h


def test_a_model_that_raises_in_the_capture_is_named_with_its_message_and_line(rig: Rig) -> None:
    """The examination finds nothing; the capture does."""
    blocker = only(examine(rig, RaisesInCapture).obstacles).blocker
    assert blocker.reason is RefusalReason.CAPTURE_ERROR
    assert "does not like being captured" in blocker.what
    assert blocker.place is not None
    assert blocker.place.function == "middle"


class LiteralToTheDevice(blocked.CopiesFromHost):
    def constant(self) -> torch.Tensor:
        return torch.tensor([1.0, 2.0, 3.0, 4.0], device="cuda:0")


@pytest.mark.parametrize("module", [*blocked.MOVABLE, LiteralToTheDevice])
def test_host_memory_that_nobody_reads_or_changes_is_movable(rig: Rig, module: type[blocked.CopiesFromHost]) -> None:
    """Constants, literals, and a tensor that the model holds: with their bytes."""
    found = only(examine(rig, module).obstacles)
    assert found.blocker.reason is RefusalReason.CPU_TENSOR
    assert found.crossing is not None
    assert (found.crossing.bytes, found.crossing.fault) == (16, "")


@pytest.mark.parametrize(("module", "fault"), blocked.NOT_MOVABLE)
def test_host_memory_in_use_is_not_movable(rig: Rig, module: type[blocked.CopiesFromHost], fault: str) -> None:
    """Read, changed, shared, random, or other from run to run."""
    crossings = [entry.crossing for entry in examine(rig, module).obstacles if entry.crossing is not None]
    assert [crossing.fault for crossing in crossings] == [fault]


def test_a_printed_tensor_and_a_list_of_indices_are_found(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    """Both go to the device or back without an operation that the dispatcher shows."""

    class Prints(blocked.Base):
        def middle(self, h: torch.Tensor) -> torch.Tensor:
            print(h)
            return h[:, [3, 2, 1, 0]]

    reasons = {entry.blocker.reason for entry in examine(rig, Prints).obstacles}
    assert reasons == {RefusalReason.SYNC, RefusalReason.CPU_TENSOR}
