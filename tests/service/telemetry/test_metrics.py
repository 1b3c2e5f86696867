"""What is counted, and that nobody can make it grow."""

from __future__ import annotations

import re

import pytest
import torch
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

from cachepolicy.buckets import Bucket
from cachepolicy.reasons import FallbackReason
from service.errors import BadInput, GraphcacheError, UnknownModel
from service.messages import GraphMode, InferRequest
from service.serving import Node
from service.telemetry.metrics import SLOWER_REPLAY, Metrics, size_class
from service.telemetry.tracing import Tracer, enter, leave
from tests.harness import MODULES, ask, host, running
from tests.instruments import slowed
from tests.traced import Kept

BASE = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
cache: {{capture: {{background: false}}}}
models:
  - {{name: affine, factory: "file:{MODULES}/affine.py", rows: independent, axes: {{batch: {{max: 16384, buckets: [2, 4]}}}}}}
"""
ROWS = {"input": torch.ones(3, 4)}


def value(node: Node, name: str) -> float:
    """The sum over a metric's series whose text begins so."""
    lines = node.worker.metrics.registry.text().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def series(node: Node) -> int:
    return sum(not line.startswith("#") for line in node.worker.metrics.registry.text().splitlines())


@pytest.mark.parametrize(
    ("volume", "wanted"), [(1, "tiny"), (16, "tiny"), (17, "small"), (128, "small"), (129, "medium"), (1024, "medium"), (1025, "above")]
)
def test_size_classes_are_shares_of_the_largest_bucket(volume: int, wanted: str) -> None:
    """Four of them, whatever the model."""
    assert size_class(volume, 1024) == wanted


def test_saved_seconds_never_fall_and_a_slow_replay_is_a_loss() -> None:
    """What was really saved is the difference."""
    metrics, bucket = Metrics(), Bucket.of(batch=4)
    for saved in (0.5, -0.125, 0.25):
        metrics.replayed("m", bucket, 1.0, saved)
    assert metrics.saved_seconds("m") == 0.75
    assert metrics.lost_seconds("m") == {SLOWER_REPLAY: 0.125}
    assert metrics.padding_ratio("m", bucket) == 1.0


async def test_an_eager_run_loses_what_a_replay_would_have_saved() -> None:
    """By the cost table, on both sides."""
    async with running("cpu", BASE) as node:
        signature = node.worker.registry.get("affine").signature(())
        node.observer._costs.load(signature, {Bucket.of(batch=4): (1.0, 0.25, 0.1, 1, 1)})
        node.admin.set_mode("affine", "", {}, GraphMode.NONE, None)
        await ask(node, "affine", ROWS)  # a bucket's first run is not measured: what was loaded holds
        node.lane.barrier()
        assert value(node, 'graphcache_lost_seconds_total{model="affine",reason="disabled"}') == pytest.approx(0.75)


async def test_a_model_that_never_had_a_graph_loses_by_the_prior() -> None:
    """Half of eager: what is off from the start must not look free."""
    async with running("cpu", BASE, ["cache.budget=0"]) as node:
        for _ in range(4):
            await ask(node, "affine", ROWS)
        node.lane.barrier()
        assert value(node, 'graphcache_lost_seconds_total{model="affine",reason="refused"}') > 0
        (reason,) = node.observer.snapshot().models[0].reasons
        assert reason.detail == "memory_budget: the budget is 0"
        assert "Raise the budget" in reason.hint


async def test_what_is_refused_as_unprofitable_loses_nothing() -> None:
    """Eager is the faster one."""
    async with running("cpu", BASE) as node:
        slowed(node).times = 100
        for _ in range(3):
            await ask(node, "affine", ROWS)
        with pytest.raises(GraphcacheError, match="unprofitable"):
            await node.admin.warm("affine", "", {"batch": 4}, {}, force=False)
        assert (await ask(node, "affine", ROWS)).outcome.reason is FallbackReason.REFUSED
        node.lane.barrier()
        assert value(node, 'graphcache_lost_seconds_total{model="affine",reason="refused"}') == 0
        assert value(node, 'graphcache_fallbacks_total{model="affine",reason="refused"}') == 1


@pytest.mark.parametrize("sampled", [True, False])
async def test_exemplars_name_traces_that_are_kept(sampled: bool) -> None:
    """A sampled request has one; where nothing is kept, or no trace is made, there is none."""
    tracer = Tracer(Kept(), ratio=float(sampled), keep=frozenset())
    async with running("cpu", BASE) as node:
        await ask(node, "affine", ROWS)
        trace = tracer.begin("a method", None)
        token = enter(trace)
        await ask(node, "affine", ROWS)
        leave(token)
        wanted = {trace.trace_id} if sampled else set()
        text = node.worker.metrics.registry.text(openmetrics=True)
        found = {
            (family.name, sample.exemplar.labels["trace_id"])
            for family in parse(text)  # type: ignore[no-untyped-call]
            for sample in family.samples
            if sample.exemplar
        }
        assert {trace_id for _, trace_id in found} == wanted
        if sampled:
            assert {name for name, _ in found} == {"graphcache_request_seconds", "graphcache_execute_seconds", "graphcache_fallbacks"}
            (decision,) = node.observer.journal.find(next(iter(wanted)))
            assert decision.outcome == "eager"


async def test_series_are_bounded_whatever_callers_send() -> None:
    """10,000 shapes, 1,000 names that are not loaded, 500 error texts: a few series, and none of their words in a label."""
    async with running("cpu", BASE) as node:
        await ask(node, "affine", ROWS)
        for number in range(1000):
            with pytest.raises(UnknownModel):
                await node.worker.infer(InferRequest(f"made-up-{number}", {}))
        for number in range(500):
            with pytest.raises(BadInput):
                await node.worker.infer(InferRequest("affine", {f"wrong-{number}": host(torch.ones(1, 4))}))
        for rows in range(1, 10_001):
            await ask(node, "affine", {"input": torch.ones(rows, 4)})
        text = node.worker.metrics.registry.text()
        print(f"{series(node)} series")
        assert not re.search(r"made-up|wrong-|batch=9", text)
        assert series(node) < 300


async def test_a_huge_request_id_is_cut_and_still_found() -> None:
    """Ids are the callers' own; what is kept of them is bounded."""
    async with running("cpu", BASE) as node:
        name = "x" * 1_000_000
        request = InferRequest("affine", {"input": host(ROWS["input"])}, request_id=name)
        await node.worker.infer(request)
        (decision,) = node.observer.journal.find(name)
        assert len(decision.request_id) < 1000


async def test_cpu_time_by_part_adds_up_and_grows() -> None:
    """Counters of parts that live as long as the worker."""
    async with running("cpu", BASE) as node:
        before = {part: value(node, f'graphcache_cpu_seconds_total{{part="{part}"}}') for part in ("loop", "lane", "capturer", "other")}
        for _ in range(50):
            await ask(node, "affine", {"input": torch.ones(512, 4)})
        after = {part: value(node, f'graphcache_cpu_seconds_total{{part="{part}"}}') for part in before}
        assert all(after[part] >= before[part] for part in before)
        assert after["lane"] > before["lane"] > 0
        assert after["loop"] > before["loop"]
