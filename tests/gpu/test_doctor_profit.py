"""Profit on a CUDA device, where kernels have durations of their own and a replay's time can be foretold."""

from __future__ import annotations

import pytest

from service.doctor.profit import Cause
from tests.backends import Rig
from tests.contracts.profit import *  # noqa: F403
from tests.contracts.profit import constructed, examined

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> str:
    """Where the contract runs."""
    return "cuda:0"


@pytest.mark.parametrize("cause", [Cause.DEVICE_BOUND, Cause.COPY_BOUND, Cause.PADDING, Cause.CAPTURE_UNPAID, Cause.NONE])
def test_the_gain_is_predicted_within_a_fifth(rig: Rig, device: str, cause: Cause) -> None:
    """A replay's predicted time, from kernels' durations and the device's own launch costs, against the measured one."""
    found = examined(rig, constructed(cause, device))
    assert found.measured_s is not None
    assert found.predicted_s == pytest.approx(found.measured_s, rel=0.2), found
