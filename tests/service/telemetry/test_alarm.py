"""The alarm `graphs effectively off`, with a clock of its own."""

from __future__ import annotations

import logging

import pytest

from cachepolicy.reasons import FallbackReason
from service.telemetry.alarm import GraphsOff, Threshold

LIMIT = Threshold(share=0.9, clear=0.8, least=10, window_s=120.0, hold_s=120.0)


class Traffic:
    """A request every second, and a look."""

    def __init__(self, reason: FallbackReason | None, detail: str = "") -> None:
        self.alarm = GraphsOff(LIMIT)
        self.now = 1000.0
        self.reason, self.detail = reason, detail

    def go_on(self, seconds: int, *, replayed_of_ten: int = 0) -> None:
        """So many of ten are replayed, the others are eager for the reason."""
        for second in range(seconds):
            replayed = second % 10 < replayed_of_ten
            self.alarm.count("m", None if replayed else self.reason, self.detail, self.now)
            self.now += 1.0
            self.alarm.look(self.now)


@pytest.mark.parametrize("reason", list(FallbackReason))
def test_every_reason_counts(reason: FallbackReason) -> None:
    """Switched off, refused, out of budget: whatever it is, the alarm is up within five minutes of traffic and names it."""
    traffic = Traffic(reason)
    traffic.go_on(100)
    assert not traffic.alarm.on
    traffic.go_on(200)
    assert str(reason) in traffic.alarm.on["m"]


def test_it_clears_when_most_requests_are_replayed_again() -> None:
    """Two minutes after the repair nothing is left of it; a second episode has to last as long as the first."""
    traffic = Traffic(FallbackReason.DISABLED)
    traffic.go_on(300)
    assert traffic.alarm.on
    traffic.go_on(120, replayed_of_ten=9)
    assert traffic.alarm.watched == {"m": False}
    traffic.go_on(100)
    assert not traffic.alarm.on


def test_a_share_below_the_threshold_never_raises_it() -> None:
    """Eight of ten are eager, for half an hour."""
    traffic = Traffic(FallbackReason.NO_BUCKET)
    traffic.go_on(1800, replayed_of_ten=2)
    assert not traffic.alarm.on


def test_a_share_about_the_threshold_does_not_make_it_flap(caplog: pytest.LogCaptureFixture) -> None:
    """Once on, it stays on at 85 % eager, and goes off below 80."""
    traffic = Traffic(FallbackReason.NOT_CAPTURED)
    with caplog.at_level(logging.WARNING):
        traffic.go_on(300)
        for _ in range(20):
            traffic.go_on(30, replayed_of_ten=2)
            traffic.go_on(30, replayed_of_ten=1)
        assert traffic.alarm.on
        assert len(caplog.records) == 1
        traffic.go_on(130, replayed_of_ten=3)
    assert not traffic.alarm.on


def test_a_start_that_is_cold_for_a_minute_does_not_raise_it() -> None:
    """Graphs come under way; eager until then is no fault."""
    traffic = Traffic(FallbackReason.NOT_CAPTURED)
    traffic.go_on(60)
    traffic.go_on(600, replayed_of_ten=8)
    assert not traffic.alarm.on


def test_without_traffic_it_stays_as_it_is() -> None:
    """Silence is no repair, and a few requests are no evidence."""
    traffic = Traffic(FallbackReason.DISABLED)
    traffic.go_on(300)
    for _ in range(600):
        traffic.now += 1.0
        traffic.alarm.look(traffic.now)
    assert traffic.alarm.on
    traffic.go_on(5, replayed_of_ten=10)
    assert traffic.alarm.on


def test_it_is_logged_once_and_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    """One line when it goes on, one when it goes off, with the refusal's own hint."""
    traffic = Traffic(FallbackReason.REFUSED, "sync: aten.item at model.py:3")
    with caplog.at_level(logging.WARNING):
        traffic.go_on(600)
        traffic.go_on(300, replayed_of_ten=10)
    told = [record.message for record in caplog.records]
    assert len(told) == 2
    assert "refused: sync" in told[0]
    assert "torch.where" in told[0]
    assert "in use again" in told[1]
