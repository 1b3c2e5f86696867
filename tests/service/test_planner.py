"""Plans from exact sizes and costs: the best set within the budget, what each graph adds, and the usual lists beside it."""

from __future__ import annotations

from itertools import combinations

import pytest

from cachepolicy.buckets import Bucket, vllm_sizes
from cachepolicy.costs import CostTable
from cachepolicy.keys import Signature
from service.messages import Plan
from service.models.spec import AxisSpec, InputSpec, ModelSpec
from service.planner import Planner
from service.tensors import Datatype

SIGNATURE = Signature("cpu", "program", "m:1@1")
Sizes = tuple[tuple[str, int], ...]


def spec(*axes: AxisSpec) -> ModelSpec:
    return ModelSpec("m", "1", (InputSpec("x", Datatype.FP32, tuple(axis.name for axis in axes)),), (), axes)


def costs(sizes: list[Sizes], own: int = 100, top: int = 0) -> CostTable:
    """Eager 10 ms and 0.1 ms an element, replay a tenth of the first and the same of the second."""
    table = CostTable()
    prices = {}
    for size in sizes:
        bucket = Bucket(size)
        prices[bucket] = (0.01 + 1e-4 * bucket.volume, 0.001 + 1e-4 * bucket.volume, 0.02, own, top * bucket.volume)
    table.load(SIGNATURE, prices)
    return table


def batches(**runs: int) -> dict[Sizes, int]:
    return {(("batch", int(name[1:])),): count for name, count in runs.items()}


def planned(runs: dict[Sizes, int], budget: int, graphs: int = 9, **options: int) -> Plan:
    axes = (AxisSpec("batch", 64, (1, 2, 4, 8, 16, 32, 64)),)
    return Planner(spec(*axes), SIGNATURE, costs(list(runs), **options), runs, 10.0, 0.05).plan(budget, graphs, 50)


@pytest.mark.parametrize("graphs", [1, 2, 3])
def test_one_axis_is_planned_exactly(graphs: int) -> None:
    """No other set of so many sizes saves more."""
    runs = batches(n1=500, n3=90, n7=200, n20=60, n41=30, n64=5)
    plan = planned(runs, 10_000, graphs)
    sizes = [Bucket(size) for size in runs]

    def saving(chosen: tuple[Bucket, ...]) -> float:
        total = 0.0
        for size, count in runs.items():
            volume = size[0][1]
            fit = min((bucket.volume for bucket in chosen if bucket.volume >= volume), default=None)
            if fit is not None:
                total += count / 10.0 * max(0.0, 0.01 + 1e-4 * volume - 0.001 - 1e-4 * fit)
        return total

    best = max(saving(chosen) for chosen in combinations(sizes, graphs))
    assert len(plan.graphs) == graphs
    assert plan.alternatives[0].saved_s_per_s == pytest.approx(best)
    assert sum(graph.adds_s_per_s for graph in plan.graphs) == pytest.approx(best)


def test_the_plan_keeps_the_budget_and_says_what_more_would_bring() -> None:
    """Two graphs fit; a third would save something; the bytes hold so many sessions."""
    plan = planned(batches(n1=500, n8=100, n40=100), 200)
    assert plan.alternatives[0].bytes <= 200
    assert plan.sessions_displaced == plan.alternatives[0].bytes / 50
    assert all(other.bytes <= 200 for other in plan.alternatives)
    assert plan.alternatives[0].saved_s_per_s >= max(other.saved_s_per_s for other in plan.alternatives)
    assert planned(batches(n1=500, n8=100, n40=100), 290).marginal_s_per_s_per_mib > 0.0


def test_in_an_arena_a_few_more_buckets_below_the_top_are_cheap() -> None:
    """The largest costs nearly all of the bytes: what comes after it adds its own only."""
    plan = planned(batches(n1=500, n8=100, n40=100), 5000, own=10, top=100)
    assert sorted(graph.bucket.volume for graph in plan.graphs) == [1, 8, 40]
    assert plan.alternatives[0].bytes == 30 + 4000
    assert plan.ladder == {"batch": [1, 8, 40]}


def test_graphs_that_padding_makes_slower_than_eager_are_not_planned_for() -> None:
    """Padded from 1 to 400 a replay takes longer than eager: only the exact size is worth a graph."""
    runs: dict[Sizes, int] = {(("batch", 1),): 10, (("batch", 400),): 10}
    axes = (AxisSpec("batch", 400, (400,)),)
    plan = Planner(spec(*axes), SIGNATURE, costs(list(runs)), runs, 10.0, 0.05).plan(10_000, 1, 0)
    assert plan.alternatives[0].saved_s_per_s == pytest.approx(0.009)
    assert plan.sessions_displaced is None


@pytest.mark.parametrize("replay", [0.0097, 0.00997, 0.011])
def test_graphs_that_would_not_be_admitted_are_not_planned_for(replay: float) -> None:
    """A replay that saves less than 5 % of itself is measured and refused: a plan that counts on it promises what never comes."""
    table = CostTable()
    table.load(SIGNATURE, {Bucket((("batch", size),)): (0.01, replay, 0.02, 100, 0) for size in (1, 8)})
    axes = (AxisSpec("batch", 8, (1, 8)),)
    plan = Planner(spec(*axes), SIGNATURE, table, batches(n1=50, n8=50), 10.0, 0.05).plan(10_000, 9, 0)
    assert plan.graphs == []
    assert all(other.saved_s_per_s == 0.0 for other in plan.alternatives)


def test_refused_buckets_are_not_planned_for() -> None:
    """Nor are sizes that they would serve: what was measured of them is forgotten, and what is guessed instead promises half the time."""
    runs = batches(n2=50, n7=40, n8=40)
    axes = (AxisSpec("batch", 8, (2, 8)),)
    refused = [Bucket((("batch", 8),))]
    plan = Planner(spec(*axes), SIGNATURE, costs(list(runs)), runs, 10.0, 0.05, refused).plan(10_000, 9, 0)
    assert [graph.bucket["batch"] for graph in plan.graphs] == [2]
    assert max(other.graphs for other in plan.alternatives) <= 2  # of 1, 2, 4 and 8 in the usual lists


def test_two_axes_are_covered_on_both() -> None:
    """A bucket serves only sizes that fit on every axis, whatever its volume."""
    runs: dict[Sizes, int] = {(("batch", 1), ("seq", 100)): 50, (("batch", 8), ("seq", 10)): 50}
    axes = (AxisSpec("batch", 16, (8, 16)), AxisSpec("seq", 128, (16, 128)))
    plan = Planner(spec(*axes), SIGNATURE, costs(list(runs)), runs, 10.0, 0.05).plan(10_000, 4, 0)
    assert {graph.bucket.sizes for graph in plan.graphs} == set(runs)
    assert plan.ladder == {"batch": [1, 8], "seq": [10, 100]}


def test_the_usual_list_of_sizes() -> None:
    """As vLLM captures by default, up to the axis' maximum."""
    assert vllm_sizes(40) == (1, 2, 4, 8, 16, 24, 32, 40)
    assert vllm_sizes(288)[-3:] == (256, 272, 288)
