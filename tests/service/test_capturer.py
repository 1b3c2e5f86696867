"""Captures by policy: what repeats and pays is captured, what does not pay or does not fit is refused, and why is told."""

from __future__ import annotations

import asyncio
import threading
from time import monotonic
from typing import Any

import pytest
import torch

from cachepolicy.capture import Capture, PaybackAdmission
from cachepolicy.reasons import FallbackReason
from service import recorder
from service.errors import CaptureRefused, Conflict
from service.jobs import Turn
from service.messages import InferRequest, Outcome, Path
from service.serving import Node
from tests.harness import MODULES, ask, host, running, served
from tests.instruments import out_of_memory_above


def config(module: str, buckets: str, name: str = "m") -> str:
    return f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
models:
  - name: {name}
    factory: file:{MODULES}/{module}.py
    rows: independent
    axes: {{batch: {{max: 64, buckets: {buckets}}}}}
"""


async def send(node: Node, batch: int, model: str = "m") -> Outcome:
    return (await ask(node, model, {"x": torch.ones(batch, 4)})).outcome


async def repeat(node: Node, batch: int, until: str, at_most: int = 3000) -> Outcome:
    """Requests of one size until the path or reason is this."""
    for _ in range(at_most):
        outcome = await send(node, batch)
        if str(outcome.reason or outcome.path) == until:
            return outcome
        await asyncio.sleep(0.02)
    raise AssertionError(f"never {until}, at last {outcome}")


async def test_what_repeats_turns_from_eager_to_replay_and_explain_predicts_each_step() -> None:
    """A model that gains by a graph: a handful of requests, then replays; each explanation names what comes next."""
    async with running("cpu", config("drudge", "[2, 4]")) as node:
        told: list[str] = []
        for _ in range(40):
            before = node.admin.explain("m", "", {"batch": 3}, {})
            outcome = await send(node, 3)
            after = node.admin.explain("m", "", {"batch": 3}, {})
            assert (outcome.path, outcome.reason) in {(said.path, said.reason) for said in (before, after)}
            told.append(str(before.reason or before.path))
            if before.path is Path.REPLAY:
                break
            await asyncio.sleep(0.1)
        assert told[0] == "not_captured"
        assert told[-1] == "replay"
        assert set(told) <= {"not_captured", "capture_pending", "replay"}
        assert told.count("not_captured") <= 12


async def test_a_graph_that_padding_makes_slower_than_eager_is_refused_with_figures() -> None:
    """One row padded to 64: measured, refused, and all that was weighed is in the detail."""
    async with running("cpu", config("bulky", "[64]")) as node:
        outcome = await repeat(node, 1, "refused")
        assert outcome.detail.startswith("unprofitable: batch=1: eager")
        assert "padded replay" in outcome.detail
        assert "ms + 0.04 ms to count it" in outcome.detail
        assert outcome.detail.endswith("a replay has to save 5% of itself")
        (info,) = node.admin.graphs("m")
        assert (info.state, info.reason) == ("refused", outcome.detail)
        with pytest.raises(CaptureRefused, match="unprofitable"):
            await node.admin.warm("m", "", {"batch": 1}, {}, force=False)


async def test_force_skips_the_profit_test() -> None:
    """A forced graph serves although eager is faster, and stays."""
    async with running("cpu", config("bulky", "[64]")) as node:
        await repeat(node, 1, "refused")
        assert (await node.admin.warm("m", "", {"batch": 1}, {}, force=True)).state == "serving"
        assert (await send(node, 1)).path is Path.REPLAY
        policy = node.capturer._follower._admission
        assert isinstance(policy, PaybackAdmission)
        (known,) = policy._known.values()
        assert not known.refusals


async def test_a_larger_graph_serves_only_sizes_that_it_makes_faster() -> None:
    """The graph of 64 rows serves 40; one row runs eagerly, since padded to 64 it would be slower."""
    async with running("cpu", config("bulky", "[1, 64]"), ["cache.capture.background=false"]) as node:
        for batch in (1, 1, 1, 60, 60, 60):  # costs
            await send(node, batch)
        node.capturer._recorder._min_gain = -0.9  # whatever it gains
        await node.admin.warm("m", "", {"batch": 60}, {}, force=False)
        assert (await send(node, 60)).path is Path.REPLAY
        outcome = await send(node, 1)
        assert (outcome.path, outcome.reason) == (Path.EAGER, FallbackReason.NOT_CAPTURED)
        assert outcome.detail == "eager is faster than batch=64"


async def test_shadow_mode_decides_and_counts_and_does_nothing() -> None:
    """No graph comes to be; the decision shows in the list, the metrics and the reply."""
    async with running("cpu", config("drudge", "[4]"), ["cache.capture.shadow=true"]) as node:
        for _ in range(30):
            outcome = await send(node, 3)
            await asyncio.sleep(0.02)
        assert (outcome.reason, outcome.detail) == (FallbackReason.NOT_CAPTURED, "captures only in shadow")
        assert [info.state for info in node.admin.graphs("m")] == ["shadow"]
        assert len(node.capturer.cache) == 0
        assert 'graphcache_shadow_decisions_total{model="m",action="capture"}' in node.worker.metrics.registry.text()


async def test_without_memory_for_a_large_bucket_the_smaller_ones_still_work() -> None:
    """Running out of memory is a refusal of that bucket, not a crash."""
    async with running("cpu", config("drudge", "[4, 64]")) as node:
        out_of_memory_above(node, 4)
        assert (await repeat(node, 60, "refused")).detail.startswith("out_of_memory: CUDA out of memory")
        await repeat(node, 3, "replay")
        assert (await send(node, 60)).reason is FallbackReason.REFUSED


async def test_the_first_run_of_a_bucket_says_nothing_about_its_cost() -> None:
    """It builds what later ones find: only the second one is a sample."""
    async with running("cpu", config("drudge", "[4]"), ["cache.capture.background=false"]) as node:
        model = served(node, "m")
        key = model.key((), model.ladder.fit({"batch": 4}))  # type: ignore[arg-type]
        node.capturer.observe_eager(key, 9.0)
        assert node.capturer._costs.eager(key.signature, key.bucket) is None
        node.capturer.observe_eager(key, 0.003)
        assert node.capturer._costs.eager(key.signature, key.bucket) == 0.003


async def test_a_reply_is_never_late_for_want_of_a_decision() -> None:
    """While captures go on, requests of other sizes are answered eagerly, and say so."""
    async with running("cpu", config("drudge", "[1, 2, 4, 8, 16]")) as node:
        reasons = set()
        for step in range(80):
            outcome = await send(node, 1 + step % 16)
            reasons.add(str(outcome.reason or outcome.path))
        assert reasons <= {"not_captured", "capture_pending", "replay"}
        await repeat(node, 16, "replay")


async def verifying(node: Node, model: str) -> None:
    """Until a graph of the model is under proof."""
    while all(graph.state != "verifying" for graph in node.admin.graphs(model)):  # noqa: ASYNC110 - nobody sends an event
        await asyncio.sleep(0.005)


async def test_what_cannot_wait_is_done_in_the_middle_of_a_capture() -> None:
    """The proof of a large encoder takes hundreds of runs; an eviction and a new budget do not wait for its end, nor do they end it."""
    async with running("cpu", sets=["cache.capture.background=false"]) as node:
        await node.admin.warm("mlp", "", {"batch": 4}, {}, force=True)
        warm = asyncio.create_task(node.admin.warm("encoder", "", {"batch": 8, "seq": 256}, {}, force=True))
        await verifying(node, "encoder")
        assert await node.admin.evict("mlp", "", {"batch": 4}, {}) == 1
        assert (await node.admin.set_budget(100 << 20)).budget == 100 << 20
        assert not warm.done()
        assert (await warm).state == "serving"


@pytest.mark.parametrize("change", ["reload", "unload"])
async def test_a_capture_of_a_model_that_changes_is_given_up(change: str) -> None:
    """Reloading and unloading don't wait for the proof of what they make worthless; who asked for the graph is told."""
    async with running("cpu", sets=["cache.capture.background=false"]) as node:
        warm = asyncio.create_task(node.admin.warm("encoder", "", {"batch": 8, "seq": 256}, {}, force=True))
        queued = asyncio.create_task(node.admin.warm("encoder", "", {"batch": 16, "seq": 512}, {}, force=True))
        await verifying(node, "encoder")
        changing = asyncio.create_task(getattr(node.admin, change)("encoder"))
        for task in (warm, queued):
            with pytest.raises(Conflict, match="the model was unloaded or reloaded meanwhile"):
                await task
        await changing
        assert not [graph for graph in node.admin.graphs() if graph.model == "encoder"]
        if change == "reload":
            assert (await node.admin.warm("encoder", "", {"batch": 1, "seq": 32}, {}, force=True)).state == "serving"


async def test_who_asks_for_a_graph_goes_before_the_policy() -> None:
    """A decision that wants many captures makes way after the one in hand."""
    async with running("cpu", config("drudge", "[1, 2, 4, 8, 16, 32, 64]"), ["cache.capture.background=false"]) as node:
        model = served(node, "m")
        wanted = [Capture(model.key((), bucket), 1.0) for bucket in reversed(list(model.ladder.buckets()))]
        node.capturer._follower._admission.decide = lambda *_: list(wanted)  # type: ignore[method-assign]
        node.capturer._thread.put(node.capturer._follower.follow, Turn.POLICY)
        await verifying(node, "m")
        await node.admin.warm("m", "", {"batch": 1}, {}, force=True)
        assert [graph.bucket.as_dict() for graph in node.admin.graphs("m") if graph.state == "serving"] == [{"batch": 1}, {"batch": 64}]


async def test_closing_gives_up_the_capture_in_hand_and_those_in_the_queue() -> None:
    """A worker that is told to stop does not prove graphs first; who waits for one is told."""
    async with running("cpu", sets=["cache.capture.background=false"]) as node:
        waiting = [
            node.capturer.warm(served(node, "encoder").key((), bucket), force=True) for bucket in served(node, "encoder").ladder.buckets()
        ]
        await verifying(node, "encoder")
    assert all(future.done() for future in waiting)
    gone = [future for future in waiting if future.cancelled() or isinstance(future.exception(), Conflict)]
    assert len(gone) > len(waiting) // 2


@pytest.mark.parametrize(("patience_s", "hurried"), [(600.0, False), (0.05, True)])
async def test_a_recording_lets_requests_pass_that_have_little_time_left(
    monkeypatch: pytest.MonkeyPatch, patience_s: float, hurried: bool
) -> None:
    """As long as that ends."""
    monkeypatch.setattr(recorder, "_HURRY_S", 3600.0)
    monkeypatch.setattr(recorder, "_PATIENCE_S", patience_s)
    async with running("cpu", config("affine", "[1, 2]"), ["cache.capture.background=false"]) as node:
        await node.admin.warm("m", "", {"batch": 1}, {}, force=True)
        asked, free, found = threading.Event(), threading.Event(), []
        record, is_hurried = node.backend.record, node.worker.hurried

        def recording(*arguments: Any, **options: Any) -> Any:
            found.append(is_hurried(3600.0))
            free.set()
            return record(*arguments, **options)

        def watched(slack_s: float) -> bool:
            asked.set()
            return is_hurried(slack_s)

        node.backend.record = recording  # type: ignore[method-assign]
        node.worker.hurried = watched  # type: ignore[method-assign]
        node.lane.submit(free.wait)
        inputs = {"input": host(torch.ones(1, 4))}
        asking = [asyncio.create_task(node.worker.infer(InferRequest("m", inputs, deadline=monotonic() + 600.0))) for _ in range(2)]
        await asyncio.sleep(0)  # the first one's batch is on its way to the lane, the second one waits
        assert node.worker.hurried(3600.0)
        asked.clear()
        warming = asyncio.create_task(node.admin.warm("m", "", {"batch": 2}, {}, force=True))
        await asyncio.to_thread(asked.wait)
        if not hurried:
            free.set()
        await asyncio.gather(warming, *asking)
        assert found == [hurried]
