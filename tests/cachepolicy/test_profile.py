"""The traffic profile: bounded counts whose error is stated, decay, and plain data."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachepolicy.profile import KEPT, HeavyHitters, Shape, Tally, TrafficProfile, Workload, rounded, shape_of

ENCODER = Workload("encoder", (("adapter", "legal"),), "prefill")
SHAPES = st.builds(lambda batch, seq: shape_of({"batch": batch, "seq": seq}), st.integers(1, 40), st.integers(1, 4096))


def batch(size: int) -> Shape:
    return shape_of({"batch": size})


@given(st.lists(SHAPES, max_size=400), st.integers(1, 20))
def test_a_heavy_hitters_count_lacks_no_more_than_is_stated(shapes: list[Shape], kept: int) -> None:
    """Never too high, too low by at most what was given up over kept + 1, and nothing is lost."""
    hitters, given_up = HeavyHitters(kept), 0.0
    for shape in shapes:
        given_up += sum(runs for _, runs in hitters.add(shape, 1.0))
    assert len(hitters.counts) <= 2 * kept
    for shape, true in Counter(shapes).items():
        counted = hitters.counts.get(shape, 0.0)
        assert true - given_up / (kept + 1) - 1e-6 <= counted <= true
    assert sum(hitters.counts.values()) + given_up == pytest.approx(len(shapes))


@given(SHAPES)
def test_a_rounded_shape_covers_the_exact_one_and_is_little_larger(shape: Shape) -> None:
    """An eighth with eight steps, to the power of two with one."""
    for (_, size), (_, eighth), (_, power) in zip(shape, rounded(shape, 8), rounded(shape, 1), strict=True):
        assert size <= eighth <= size * 1.125
        assert eighth <= power < 2 * size
        assert power & (power - 1) == 0


def flooded() -> tuple[Tally, dict[Shape, int]]:
    """10,000 shapes once each, and between them three hot ones."""
    hot = {shape_of({"batch": 4, "seq": 100}): 1000, shape_of({"batch": 8, "seq": 300}): 500, shape_of({"batch": 1, "seq": 77}): 250}
    tally = Tally()
    for number in range(10_000):
        tally.add(shape_of({"batch": 10 + number % 20, "seq": 1 + number // 20}))
        for shape, runs in hot.items():
            if number % (10_000 // runs) == 0:
                tally.add(shape)
    return tally, hot


def test_ten_thousand_shapes_once_each_do_not_push_out_the_hot_ones() -> None:
    """The hot ones are counted within the stated error, the others at rounded shapes; no run is lost; what is kept is bounded."""
    tally, hot = flooded()
    shapes = tally.shapes()
    assert sum(shapes.values()) == pytest.approx(11_750)
    for shape, runs in hot.items():
        assert runs - tally.error <= shapes[shape] <= runs
    assert tally.error < 100
    assert len(shapes) <= sum(KEPT)
    assert tally.total == pytest.approx(11_750)


def test_a_flood_after_hot_shapes_and_one_before_them_do_the_same() -> None:
    """When the hot shape came makes no difference that matters."""
    for hot_first in (True, False):
        tally = Tally()
        if hot_first:
            tally.add(batch(3), 500.0)
        for number in range(10_000):
            tally.add(shape_of({"batch": 10 + number % 20, "seq": 1 + number // 20}))
        if not hot_first:
            for _ in range(500):
                tally.add(batch(3))
        assert 500 - tally.error <= tally.shapes()[batch(3)] <= 500


def test_memory_of_a_tally_is_bounded() -> None:
    """A hundred thousand shapes take no more than ten thousand do."""
    sizes = []
    for count in (10_000, 100_000):
        tracemalloc.start()
        tally = Tally()
        for number in range(count):
            tally.add(shape_of({"batch": 1 + number % 100, "seq": 1 + number // 100}))
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert sizes[1] < 1.5 * sizes[0]
    assert sizes[1] < 500_000


def test_counts_decay_by_half_in_a_half_life() -> None:
    """What is noted late weighs as if it had been noted in time; the rate of a steady stream is its rate."""
    profile = TrafficProfile(now=0.0, half_life_s=100.0)
    profile.note(ENCODER, batch(4), 0.0, 8.0)
    profile.watch(10.0, 0.0)
    profile.advance(100.0)
    profile.note(ENCODER, batch(4), 0.0, 8.0)  # came late
    profile.watch(10.0, 0.0)
    profile.note(ENCODER, batch(2), 100.0, 2.0)
    assert profile.tallies[ENCODER].shapes() == {batch(4): 8.0, batch(2): 2.0}
    assert profile.rates(ENCODER) == {batch(4): 0.8, batch(2): 0.2}
    assert profile.rates(Workload("other")) == {}


def test_windows_of_several_workers_make_one_profile() -> None:
    """Each decays by its own age; rates are one worker's."""
    profile = TrafficProfile(now=3600.0, half_life_s=3600.0)
    for start in (0.0, 3600.0):
        window = TrafficProfile(now=start)
        window.note(ENCODER, batch(4), start, 600.0)
        window.watch(600.0, start)
        profile.merge(window)
    assert profile.tallies[ENCODER].shapes() == {batch(4): 900.0}
    assert profile.rates(ENCODER) == {batch(4): pytest.approx(1.0)}


@given(st.lists(st.tuples(SHAPES, st.floats(0.1, 1e6)), max_size=600), st.floats(1.0, 1e5) | st.just(inf))
def test_a_profile_survives_plain_data(counts: list[tuple[Shape, float]], half_life_s: float) -> None:
    """By way of JSON, with the same shapes, rates and total."""
    profile = TrafficProfile(5.0, half_life_s)
    for shape, runs in counts:
        profile.note(ENCODER, shape, 5.0, runs)
    profile.watch(60.0, 5.0)
    again = TrafficProfile.from_plain(json.loads(json.dumps(profile.plain())))
    assert (again.now, again.half_life_s, again.seconds) == (5.0, half_life_s, 60.0)
    for workload, tally in profile.tallies.items():
        assert again.tallies[workload].total == pytest.approx(tally.total)
        if len(counts) <= KEPT[0]:
            assert again.rates(workload) == pytest.approx(profile.rates(workload))


def plain(**changed: object) -> dict[str, object]:
    shapes = [{"shape": {"batch": 4}, "runs": 2}]
    workload = {"model": "m", "variant": {}, "phase": "any", "shapes": shapes}
    return {"now": 1.0, "seconds": 2.0, "workloads": [{**workload, **changed}]}


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], "profile: must be a mapping"),
        ({**plain(), "now": "late"}, "now: must be a number"),
        ({**plain(), "seconds": float("nan")}, "seconds: must be a number"),
        ({**plain(), "half_life_s": 0}, "half_life_s: must be positive"),
        ({**plain(), "workloads": {}}, "workloads: must be a list"),
        (plain(model=""), r"workloads\[0\].model: must be a name"),
        (plain(model="a\nb"), r"workloads\[0\].model: must be a name"),
        (plain(variant=[]), r"workloads\[0\].variant: must be a mapping"),
        (plain(other=-1), r"workloads\[0\].other: must be a number"),
        (plain(shapes=[{"shape": {"batch": 0}, "runs": 1}]), r"workloads\[0\].shapes\[0\].shape.batch: must be a size"),
        (plain(shapes=[{"shape": {"batch": True}, "runs": 1}]), r"workloads\[0\].shapes\[0\].shape.batch: must be a size"),
        (plain(shapes=[{"shape": {"batch": 1}, "runs": 1e300}]), r"workloads\[0\].shapes\[0\].runs: must be a number"),
    ],
)
def test_wrong_plain_data_is_named(document: object, problem: str) -> None:
    """The place comes first."""
    with pytest.raises(ValueError, match=f"^{problem}"):
        TrafficProfile.from_plain(document)


def test_workloads_are_bounded() -> None:
    """A profile that is full takes no further workload, and says so."""
    profile = TrafficProfile(0.0)
    assert all(profile.note(Workload(f"m{number}"), batch(1), 0.0) for number in range(1024))
    assert not profile.note(Workload("one more"), batch(1), 0.0)
    assert profile.note(Workload("m7"), batch(1), 0.0)


def test_a_workload_prints_as_people_write_it() -> None:
    """Model, variant and role."""
    assert str(ENCODER) == "encoder[adapter=legal]@prefill"
    assert str(Workload("mlp")) == "mlp"
