"""Profit on the CPU, and the judgement itself on made-up measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.doctor.measuring import Kernel, Work
from service.doctor.profit import Cause, Parts, Profit, judge
from tests.contracts.profit import *  # noqa: F403


@pytest.fixture
def device() -> str:
    """Where the contract runs."""
    return "cpu"


PAYS = Profit(
    work=Work((Kernel("add", 30, 60e-6),)),
    eager_s=400e-6,
    step_s=380e-6,
    submit_s=350e-6,
    parts=Parts(launch_s=20e-6, work_s=60e-6, padding_s=5e-6, copies_s=10e-6),
    measured_s=100e-6,
    saved_s=300e-6,
    capture_s=0.3,
    steps=2000,
    region=1.0,
    cause=Cause.NONE,
)


def test_a_graph_that_saves_enough_for_long_enough_pays() -> None:
    """A capture of 0.3 s that saves 0.3 ms is paid for by 1,000 requests."""
    assert judge(PAYS) is Cause.NONE
    assert PAYS.break_even == pytest.approx(1000)


def test_too_few_requests_leave_the_capture_unpaid() -> None:
    """One less than break-even."""
    assert judge(replace(PAYS, steps=999)) is Cause.CAPTURE_UNPAID


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        (Parts(launch_s=20e-6, work_s=360e-6, padding_s=5e-6, copies_s=10e-6), Cause.DEVICE_BOUND),
        (Parts(launch_s=20e-6, work_s=60e-6, padding_s=5e-6, copies_s=310e-6), Cause.COPY_BOUND),
        (Parts(launch_s=20e-6, work_s=60e-6, padding_s=310e-6, copies_s=10e-6), Cause.PADDING),
        (Parts(launch_s=310e-6, work_s=60e-6, padding_s=5e-6, copies_s=10e-6), Cause.SMALL_REGION),
    ],
)
def test_what_takes_most_of_a_replay_that_saves_nothing_is_the_cause(parts: Parts, cause: Cause) -> None:
    """Each part of a replay's time in turn."""
    assert judge(replace(PAYS, parts=parts, saved_s=5e-6)) is cause


def test_a_graph_of_a_small_part_of_the_step_is_a_small_region() -> None:
    """The whole would pay; the twentieth of it that can be captured does not."""
    assert judge(replace(PAYS, region=0.05, capture_s=None, measured_s=None)) is Cause.SMALL_REGION


def test_the_device_idles_while_the_host_submits() -> None:
    """60 µs of work in 380 µs."""
    assert PAYS.idle == pytest.approx(1 - 60 / 380)
