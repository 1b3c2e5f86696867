"""Costs: measured, interpolated, guessed; shared by what has the same kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cachepolicy.costs import CostTable, Curve
from cachepolicy.keys import GraphKey
from tests.cachepolicy.worlds import bucket, signature


def test_estimates_lie_between_what_was_measured() -> None:
    """Linear in between, flat below, by the last slope above."""
    curve = Curve()
    curve.observe(10, 1.0)
    curve.observe(20, 3.0)
    assert curve.at(15) == pytest.approx(2.0)
    assert curve.at(5) == 1.0
    assert curve.at(30) == pytest.approx(5.0)


def test_estimates_above_never_fall() -> None:
    """A falling last slope is noise."""
    curve = Curve()
    curve.observe(10, 3.0)
    curve.observe(20, 1.0)
    assert curve.at(30) == 1.0


def test_nothing_measured_is_nothing_known() -> None:
    """None, not zero."""
    table = CostTable()
    assert table.eager(signature(), bucket(4)) is None
    assert table.replay(signature(), bucket(4)) is None
    assert table.capture(signature(), bucket(4)) is None


def test_later_samples_move_the_average() -> None:
    """And only a change that matters makes a new version."""
    table = CostTable()
    table.observe_eager(signature(), bucket(4), 1.0)
    version = table.version(signature())
    table.observe_eager(signature(), bucket(4), 1.01)
    assert table.version(signature()) == version
    for _ in range(50):
        table.observe_eager(signature(), bucket(4), 2.0)
    assert table.version(signature()) > version
    assert table.eager(signature(), bucket(4)) == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize("at", range(12))
def test_one_run_beside_a_stall_is_not_believed(at: int) -> None:
    """Whether it is the first, one of the first, or comes late; the very first is corrected by the second."""
    table = CostTable()
    for sample in range(12):
        table.observe_eager(signature(), bucket(4), 20.0 if sample == at else 1.0)
        assert table.eager(signature(), bucket(4)) == (20.0 if at == sample == 0 else 1.0)


def test_a_reload_keeps_what_was_learned() -> None:
    """Costs depend on everything but the weights."""
    table = CostTable()
    table.observe_replay(signature(), bucket(4), 1.0)
    assert table.replay(replace(signature(), weights="model:1@2"), bucket(4)) == 1.0
    assert table.replay(replace(signature(), environment="other"), bucket(4)) is None


def test_bytes_are_of_a_set() -> None:
    """Own bytes add up; of an arena only the largest counts, and each model has its own."""
    table = CostTable()
    for name in ("a", "b"):
        table.observe_capture(signature(name), bucket(1), 0.1, 5, arena_bytes=100)
        table.observe_capture(signature(name), bucket(8), 0.1, 5, arena_bytes=300)
    keys = [GraphKey(signature("a"), bucket(1)), GraphKey(signature("a"), bucket(8)), GraphKey(signature("b"), bucket(1))]
    assert table.bytes(keys) == 3 * 5 + 300 + 100
    assert table.bytes([]) == 0
