"""The flow: bounds, deadlines, cancellation, parts, errors of the model."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest
import torch

from service.errors import BadInput, CaptureRefused, ConfigError, DeadlinePassed, ModelRaised, Overloaded, Unavailable, UnknownModel
from service.messages import InferRequest, Path
from service.recorder import Graph
from service.serving import Node
from tests.harness import MODULES, ask, eager, host, running, served, value

SLOW = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"], limits: {{waiting: 3, waiting_bytes: 1KiB}}}}
models:
  - {{name: slow, factory: "file:{MODULES}/slow.py", axes: {{batch: {{max: 128}}}}}}
"""
AFFINE = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
models:
  - name: affine
    factory: file:{MODULES}/affine.py
    rows: independent
    axes: {{batch: {{max: 4, buckets: [2, 4], above: split}}}}
"""


def runs(node: Node) -> int:
    """How often the slow step has really run."""
    return int(vars(type(served(node, "slow").loaded.module))["RUNS"])


def slow(size: int = 1, deadline_s: float | None = None) -> InferRequest:
    return InferRequest("slow", {"x": host(torch.ones(size, 4))}, deadline=None if deadline_s is None else monotonic() + deadline_s)


async def test_the_request_behind_a_full_queue_is_refused_at_once() -> None:
    """Three may be in the worker; the fourth is RESOURCE_EXHAUSTED before the first is done, and there is room again afterwards."""
    async with running("cpu", SLOW) as node:
        first = [asyncio.create_task(node.worker.infer(slow())) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="3 requests are waiting"):
            await node.worker.infer(slow())
        assert not any(task.done() for task in first)
        await asyncio.gather(*first)
        await node.worker.infer(slow())


async def test_waiting_bytes_are_bounded() -> None:
    """A request whose bytes don't fit the limit is refused, however short the queue."""
    async with running("cpu", SLOW) as node:
        with pytest.raises(Overloaded, match="bytes"):
            await node.worker.infer(slow(64 + 1))
        assert node.worker.waiting == 0


async def test_expired_and_cancelled_requests_never_run() -> None:
    """Behind a running step one request's deadline passes and one is cancelled: told at once, and their steps never run."""
    async with running("cpu", SLOW) as node:
        before = runs(node)
        running_one = asyncio.create_task(node.worker.infer(slow()))
        await asyncio.sleep(0.02)
        expiring = asyncio.create_task(node.worker.infer(slow(deadline_s=0.03)))
        cancelled = asyncio.create_task(node.worker.infer(slow()))
        await asyncio.sleep(0.01)
        cancelled.cancel()
        with pytest.raises(DeadlinePassed):
            await expiring
        assert not running_one.done()
        await running_one
        await node.worker.drain()
        assert runs(node) == before + 1


async def test_a_deadline_in_the_past_is_refused_on_arrival() -> None:
    """Nothing is queued for it."""
    async with running("cpu", SLOW) as node:
        before = runs(node)
        with pytest.raises(DeadlinePassed):
            await node.worker.infer(slow(deadline_s=-1.0))
        await node.worker.drain()
        assert runs(node) == before
        assert node.worker.waiting == 0


async def test_a_draining_worker_finishes_what_it_has_and_takes_no_more() -> None:
    """Requests in flight are answered, new ones are UNAVAILABLE."""
    async with running("cpu", SLOW) as node:
        inflight = asyncio.create_task(node.worker.infer(slow()))
        await asyncio.sleep(0.02)
        draining = asyncio.create_task(node.worker.drain())
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await node.worker.infer(slow())
        await draining
        assert inflight.done()
        assert value((await inflight).outputs["output"]).tolist() == [[2.0] * 4]


async def test_a_model_that_raises_fails_its_own_request_only() -> None:
    """The error carries the exception's type; the next request is right."""
    async with running("cpu", SLOW) as node:
        with pytest.raises(ModelRaised, match="ValueError: minus seven"):
            await ask(node, "slow", {"x": torch.full((1, 4), -7.0)})
        reply = await ask(node, "slow", {"x": torch.zeros(1, 4)})
        assert value(reply.outputs["output"]).tolist() == [[1.0] * 4]


RAISING = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
models:
  - {{name: raising, factory: "file:{MODULES}/raising.py", args: {{kind: raising}}, axes: {{batch: {{max: 8}}}}}}
  - {{name: leaving, factory: "file:{MODULES}/raising.py", args: {{kind: leaving}}, axes: {{batch: {{max: 4, buckets: [4]}}}}}}
"""


async def test_whatever_a_model_raises_fails_its_own_request_only() -> None:
    """SystemExit and the like name their type and end neither the lane nor the capturer; so does an error whose text raises."""
    names = ("SystemExit", "KeyboardInterrupt", "CancelledError", "GeneratorExit", "BaseException", "Mute")
    async with running("cpu", RAISING) as node:
        for number, name in enumerate(names, 1):
            with pytest.raises(ModelRaised, match=f"^{name}: "):
                await ask(node, "raising", {"x": torch.full((1, 4), float(number))})
        reply = await ask(node, "raising", {"x": torch.zeros(1, 4)})
        assert value(reply.outputs["output"]).tolist() == [[1.0] * 4]


async def test_the_lane_outlives_its_items() -> None:
    """Even one that breaks its promise to never raise."""

    def leave() -> None:
        raise SystemExit

    async with running("cpu", AFFINE) as node:
        node.lane.post(leave)
        assert (await ask(node, "affine", {"input": torch.zeros(1, 4)})).outputs


async def test_a_step_that_leaves_while_it_is_recorded_is_refused() -> None:
    """The capturer names what was raised and goes on."""
    async with running("cpu", RAISING) as node:
        with pytest.raises(CaptureRefused, match="SystemExit: 3"):
            await node.admin.warm("leaving", "", {"batch": 4}, {}, force=True)
        with pytest.raises(CaptureRefused):
            await node.admin.warm("leaving", "", {"batch": 4}, {}, force=True)


async def test_a_factory_that_raises_no_exception_is_a_configuration_error() -> None:
    """CancelledError out of a factory would end the load's task."""
    async with running("cpu", RAISING) as node:
        with pytest.raises(ConfigError, match="raised CancelledError: in the factory"):
            await node.admin.load(f"{{name: never, factory: 'file:{MODULES}/raising.py', args: {{kind: never}}}}")


async def test_one_culprit_does_not_fail_the_batch_it_was_merged_into() -> None:
    """Token 99 of 100 is fine, token 100 raises: of the requests merged into one batch only the culprit's fails."""
    text = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
cache: {{capture: {{background: false}}}}
models:
  - {{name: table, factory: "file:{MODULES}/table.py", rows: independent, axes: {{batch: {{max: 64}}}}}}
"""
    async with running("cpu", text) as node:
        requests = [{"tokens": torch.tensor([[token]])} for token in (5, 99, 100, 7, 8)]
        replies = await asyncio.gather(*(ask(node, "table", r) for r in requests), return_exceptions=True)
        failed = [isinstance(reply, ModelRaised) for reply in replies]
        assert failed == [False, False, True, False, False]


async def test_a_large_request_is_served_in_parts_and_joined_in_order() -> None:
    """Eleven rows over buckets of four: three parts, replay only if every part was, rows in place."""
    async with running("cpu", AFFINE) as node:
        await node.admin.warm("affine", "", {"batch": 4}, {}, force=True)
        x = torch.randn(11, 4)
        reply = await ask(node, "affine", {"input": x})
        assert reply.outcome.parts == 3
        assert reply.outcome.path is Path.REPLAY
        torch.testing.assert_close(value(reply.outputs["output"]), eager(served(node, "affine").loaded, {"input": x})["output"])
        node.admin.set_mode("affine", "", {}, "none", None)
        reply = await ask(node, "affine", {"input": x})
        assert (reply.outcome.parts, reply.outcome.path, str(reply.outcome.reason)) == (3, Path.EAGER, "disabled")


async def test_only_requested_outputs_come_back() -> None:
    """An unknown output is refused by name."""
    async with running("cpu", AFFINE) as node:
        request = InferRequest("affine", {"input": host(torch.randn(1, 4))}, outputs=("nothing",))
        with pytest.raises(BadInput, match="nothing"):
            await node.worker.infer(request)


async def test_unknown_models_and_versions_are_told_apart() -> None:
    """The message names what is up."""
    async with running("cpu", AFFINE) as node:
        with pytest.raises(UnknownModel, match="unknown model 'nope'"):
            await node.worker.infer(InferRequest("nope", {}))
        with pytest.raises(UnknownModel, match="no version '9'; up are 1"):
            await node.worker.infer(InferRequest("affine", {}, version="9"))


async def test_a_replay_that_fails_is_run_eagerly_and_its_graph_is_dropped() -> None:
    """The reply is right and says replay_failed; later requests don't meet that graph again."""
    async with running("cpu", AFFINE, ["cache.capture.background=false"]) as node:
        await node.admin.warm("affine", "", {"batch": 2}, {}, force=True)
        entry = next(iter(node.capturer.cache))

        class Broken:
            def __getattr__(self, name: str) -> object:
                raise RuntimeError("the graph is gone")

        graph = entry.payload
        assert isinstance(graph, Graph)
        entry.payload = Graph(Broken(), graph.padding)  # type: ignore[arg-type]
        x = torch.randn(2, 4)
        try:
            reply = await ask(node, "affine", {"input": x})
        finally:
            entry.payload = graph
        assert (reply.outcome.path, str(reply.outcome.reason)) == (Path.EAGER, "replay_failed")
        torch.testing.assert_close(value(reply.outputs["output"]), eager(served(node, "affine").loaded, {"input": x})["output"])
        await asyncio.sleep(0.2)
        assert len(node.capturer.cache) == 0


async def test_rows_merge_once_they_are_proven_independent() -> None:
    """With `rows: auto` requests run alone until a graph was proven; then those that wait together run together."""
    async with running("cpu", AFFINE.replace("    rows: independent\n", "")) as node:
        requests = [{"input": torch.randn(1, 4)} for _ in range(5)]
        before = await asyncio.gather(*(ask(node, "affine", r) for r in requests))
        assert [reply.outcome.batch_rows for reply in before] == [1] * 5
        await node.admin.warm("affine", "", {"batch": 4}, {}, force=True)
        after = await asyncio.gather(*(ask(node, "affine", r) for r in requests))
        assert max(reply.outcome.batch_rows for reply in after) == 4
        for reply, request in zip(after, requests, strict=True):
            torch.testing.assert_close(value(reply.outputs["output"]), eager(served(node, "affine").loaded, request)["output"])


async def test_rows_that_depend_on_each_other_never_merge_nor_split() -> None:
    """A batch statistic is found out: each request runs alone, at its exact size or eagerly, and none is cut in parts."""
    text = AFFINE.replace("affine.py", "centred.py").replace("    rows: independent\n", "")
    async with running("cpu", text) as node:
        await node.admin.warm("affine", "", {"batch": 4}, {}, force=True)
        requests = [{"x": torch.randn(size, 4)} for size in (1, 2, 3, 4, 1, 9)]
        replies = await asyncio.gather(*(ask(node, "affine", r) for r in requests))
        for reply, request in zip(replies, requests, strict=True):
            rows = len(request["x"])
            assert (reply.outcome.batch_rows, reply.outcome.parts) == (rows, 1)
            torch.testing.assert_close(value(reply.outputs["output"]), eager(served(node, "affine").loaded, request)["output"])
        assert replies[3].outcome.path is Path.REPLAY
        assert str(replies[2].outcome.reason) == "exact_only"
        assert "padded to" in replies[2].outcome.detail
