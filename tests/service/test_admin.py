"""Acting on a running worker: models come, go and change under load; graphs are warmed, pinned, evicted; modes and budgets change."""

from __future__ import annotations

import asyncio
from itertools import repeat
from pathlib import Path as FilePath

import pytest
import torch
from safetensors.torch import save_file

from cachepolicy.buckets import Bucket
from cachepolicy.reasons import RefusalReason
from service.errors import BadInput, CaptureRefused, ConfigError, Conflict, NotSupported, UnknownModel
from service.messages import Path
from service.progress import Progress, Stage
from tests.harness import MODULES, ask, eager, running, served, value

BASE = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
models:
  - &affine
    name: affine
    factory: file:{MODULES}/affine.py
    rows: independent
    axes: {{batch: {{max: 4, buckets: [2, 4]}}}}
  - {{<<: *affine, version: "2"}}
"""
SPLIT = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
models:
  - {{name: affine, factory: "file:{MODULES}/affine.py", rows: independent, axes: {{batch: {{max: 4, buckets: [4], above: split}}}}}}
"""
SECOND = f"""
name: second
factory: file:{MODULES}/affine.py
axes: {{batch: {{max: 4, buckets: [2, 4]}}}}
"""


async def test_models_are_loaded_and_unloaded_while_others_serve() -> None:
    """A load puts a model up under its name, an unload takes it and its graphs down; the other model never notices."""
    async with running("cpu", BASE) as node:
        x = {"input": torch.randn(2, 4)}
        await node.admin.load(SECOND)
        await node.admin.warm("second", "", {"batch": 2}, {}, force=True)
        assert (await ask(node, "second", x)).outcome.path is Path.REPLAY
        await node.admin.unload("second")
        with pytest.raises(UnknownModel):
            await ask(node, "second", x)
        assert len(node.capturer.cache) == 0
        assert (await ask(node, "affine", x)).version == "2"


async def test_a_load_that_fails_says_why_and_harms_nothing() -> None:
    """A factory off the allowlist, a version that is up already, and text that is no model."""
    async with running("cpu", BASE) as node:
        with pytest.raises(ConfigError, match="allowed_factories"):
            await node.admin.load("name: evil\nfactory: os:getcwd\n")
        with pytest.raises(Conflict, match="is up already"):
            await node.admin.load(SECOND.replace("second", "affine"))
        with pytest.raises(ConfigError, match="factoryy"):
            await node.admin.load("name: m\nfactoryy: x\n")
        await ask(node, "affine", {"input": torch.randn(1, 4)})


async def test_the_newest_version_answers_where_none_is_named() -> None:
    """Two versions are up; each answers to its number."""
    async with running("cpu", BASE) as node:
        assert served(node, "affine").spec.version == "2"
        await node.admin.unload("affine", "2")
        assert served(node, "affine").spec.version == "1"


async def test_no_old_answer_after_a_reload_is_confirmed(tmp_path: FilePath) -> None:
    """1,000 requests around two reloads: each reply is wholly of one version, none of an old one after its end."""
    files, wanted = [], []
    x = {"input": torch.randn(3, 4)}
    for number in range(2):
        weights = {"weight": torch.randn(2, 4), "bias": torch.randn(2)}
        files.append(tmp_path / f"{number}.safetensors")
        save_file(weights, files[-1])
        wanted.append(x["input"] @ weights["weight"].T + weights["bias"])
    async with running("cpu", BASE) as node:
        await node.admin.warm("affine", "", {"batch": 4}, {}, force=True)
        wanted.insert(0, eager(served(node, "affine").loaded, x)["output"])
        confirmed, finished = 0, asyncio.Event()
        seen: set[tuple[int, Path]] = set()

        async def client() -> None:
            for _ in repeat(None, 100):
                await one()
            while not finished.is_set():
                await one()

        async def one() -> None:
            floor = confirmed
            reply = await ask(node, "affine", x)
            got = value(reply.outputs["output"])
            version = next(n for n, want in enumerate(wanted) if torch.allclose(got, want, rtol=1e-5, atol=1e-6))
            assert version >= floor, "an answer of replaced weights"
            seen.add((version, reply.outcome.path))
            await asyncio.sleep(0.002)

        clients = [asyncio.create_task(client()) for _ in range(10)]
        for number, file in enumerate(files, 1):
            await asyncio.sleep(0.05)
            await node.admin.reload("affine", "", str(file))
            confirmed = number
            await node.admin.warm("affine", "", {"batch": 4}, {}, force=True)
        await asyncio.sleep(0.05)
        finished.set()
        await asyncio.gather(*clients)
        assert {version for version, _ in seen} == {0, 1, 2}
        assert (2, Path.REPLAY) in seen


async def test_no_reply_mixes_weights(tmp_path: FilePath) -> None:
    """Requests that are served in parts, while weights are reloaded again and again: each is wholly of one load."""
    files = []
    for number in (2.0, 3.0):
        files.append(tmp_path / f"w{number}.safetensors")
        save_file({"weight": torch.full((2, 4), number), "bias": torch.zeros(2)}, files[-1])
    async with running("cpu", SPLIT) as node:
        await node.admin.reload("affine", "", str(files[0]))
        seen: set[float] = set()
        finished = asyncio.Event()

        async def client() -> None:
            while not finished.is_set():
                reply = await ask(node, "affine", {"input": torch.ones(40, 4)})
                assert reply.outcome.parts == 10
                found = set(value(reply.outputs["output"]).flatten().tolist())
                assert len(found) == 1, "a reply of two loads"
                seen.update(found)

        clients = [asyncio.create_task(client()) for _ in range(6)]
        for number in range(12):
            await node.admin.reload("affine", "", str(files[(number + 1) % 2]))
        finished.set()
        await asyncio.gather(*clients)
        assert seen == {8.0, 12.0}


async def test_a_reload_that_fails_leaves_the_old_version_serving(tmp_path: FilePath) -> None:
    """Weights of another shape are refused by name; graphs and answers stay."""
    save_file({"weight": torch.randn(3, 4), "bias": torch.randn(3)}, tmp_path / "w.safetensors")
    async with running("cpu", BASE) as node:
        await node.admin.warm("affine", "", {"batch": 2}, {}, force=True)
        with pytest.raises(ConfigError, match="weight"):
            await node.admin.reload("affine", "", str(tmp_path / "w.safetensors"))
        assert (await ask(node, "affine", {"input": torch.randn(2, 4)})).outcome.path is Path.REPLAY


async def test_explain_predicts_what_then_happens() -> None:
    """From the first miss to the replay, each explanation names the path and reason of the request after it."""
    gains = BASE.replace("affine.py", "drudge.py")
    async with running("cpu", gains) as node:
        told = []
        for _ in range(6):
            explanation = node.admin.explain("affine", "", {"batch": 2}, {})
            outcome = (await ask(node, "affine", {"x": torch.ones(2, 4)})).outcome
            assert (explanation.path, explanation.reason) == (outcome.path, outcome.reason)
            assert explanation.bucket == outcome.bucket
            told.append(str(explanation.reason or explanation.path))
            await asyncio.sleep(0.4)
        assert told[0] == "not_captured"
        assert told[-1] == "replay"


async def test_eviction_and_pin() -> None:
    """A pinned graph stays, an unpinned one goes, and the next request says evicted."""
    async with running("cpu", BASE, ["cache.capture.background=false"]) as node:
        for batch in (2, 4):
            await node.admin.warm("affine", "", {"batch": batch}, {}, force=True)
        assert node.admin.pin("affine", "", {"batch": 2}, {}, True).pinned
        assert await node.admin.evict("affine", "", None, {}) == 1
        assert [info.bucket["batch"] for info in node.admin.graphs("affine") if info.state == "serving"] == [2]
        node.admin.pin("affine", "", {"batch": 2}, {}, False)
        assert await node.admin.evict("affine", "", {"batch": 1}, {}) == 1
        outcome = (await ask(node, "affine", {"input": torch.randn(2, 4)})).outcome
        assert str(outcome.reason) == "evicted"
        with pytest.raises(Conflict, match="not resident"):
            node.admin.pin("affine", "", {"batch": 2}, {}, True)


async def test_the_budget_shrinks_live() -> None:
    """What no longer fits is destroyed before the call returns; a graph that does not fit is refused by name."""
    async with running("cpu", BASE, ["cache.capture.background=false"]) as node:
        for batch in (2, 4):
            await node.admin.warm("affine", "", {"batch": batch}, {}, force=True)
        used = node.capturer.cache.used
        change = await node.admin.set_budget(used - 1)
        assert (change.budget, change.used) == (used - 1, node.capturer.cache.used)
        assert change.freed == used - node.capturer.cache.used > 0
        await node.admin.set_budget(1)
        with pytest.raises(CaptureRefused, match="memory_budget"):
            await node.admin.warm("affine", "", {"batch": 2}, {}, force=True)


async def test_mode_full_captures_every_bucket() -> None:
    """Without any traffic, all buckets of the ladder serve."""
    async with running("cpu", BASE, ["cache.capture.background=false"]) as node:
        node.admin.set_mode("affine", "", {}, "full", None)
        await node.admin.warm("affine", "", {"batch": 1}, {}, force=True)  # stands behind the others in the queue
        assert [info.state for info in node.admin.graphs("affine")] == ["serving", "serving"]


async def test_modes_that_are_not_built_are_told_from_those_that_do_not_exist() -> None:
    """Neither is taken for another mode."""
    async with running("cpu", BASE) as node:
        with pytest.raises(NotSupported, match="piecewise"):
            node.admin.set_mode("affine", "", {}, "piecewise", None)
        with pytest.raises(BadInput, match="fast"):
            node.admin.set_mode("affine", "", {}, "fast", None)


async def test_shapes_that_make_no_sense_are_refused_by_axis() -> None:
    """Unknown axis, size 0, above the maximum."""
    async with running("cpu", BASE) as node:
        for shape, problem in (
            ({"rows": 1}, "rows"),
            ({"batch": 0}, "positive"),
            ({"batch": 5}, "maximum"),
            ({}, "no size for axis 'batch'"),
        ):
            with pytest.raises(BadInput, match=problem):
                node.admin.explain("affine", "", shape, {})
            with pytest.raises(BadInput, match=problem):
                await node.admin.evict("affine", "", shape, {})


async def test_explain_knows_how_large_a_request_may_be() -> None:
    """What is split has no maximum of its own, but no such message comes in."""
    async with running("cpu", SPLIT) as node:
        assert node.admin.explain("affine", "", {"batch": 2**21}, {}).path is Path.EAGER
        with pytest.raises(BadInput, match=r"above worker\.limits\.message, 67108864"):
            node.admin.explain("affine", "", {"batch": 2**62}, {})


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
async def test_a_mode_lasts_for_a_time_that_ends(seconds: float) -> None:
    """A permanent one has no time at all."""
    async with running("cpu", BASE) as node:
        with pytest.raises(BadInput, match="positive and finite"):
            node.admin.set_mode("affine", "", {}, "none", seconds)


async def test_metrics_show_requests_graphs_and_the_mode_with_its_origin() -> None:
    """The names of the interface, after a few requests and an opt-out."""
    async with running("cpu", BASE, ["cache.capture.background=false"]) as node:
        await node.admin.warm("affine", "", {"batch": 2}, {}, force=True)
        await ask(node, "affine", {"input": torch.randn(2, 4)})
        node.admin.set_mode("affine", "", {}, "none", None)
        await ask(node, "affine", {"input": torch.randn(2, 4)})
        with pytest.raises(UnknownModel):
            await ask(node, "made-up-name", {"input": torch.randn(2, 4)})
        text = node.worker.metrics.registry.text()
        for line in (
            'graphcache_requests_total{model="affine",outcome="replay"} 1.0',
            'graphcache_requests_total{model="affine",outcome="eager"} 1.0',
            'graphcache_requests_total{model="unknown",outcome="error"} 1.0',
            'graphcache_fallbacks_total{model="affine",reason="disabled"} 1.0',
            'graphcache_bucket_hits_total{model="affine",bucket="batch=2"} 1.0',
            'graphcache_graphs{model="affine",state="serving"} 1.0',
            'graphcache_graphs_off{model="affine",origin="rpc"} 1.0',
        ):
            assert line in text, text
        assert "made-up-name" not in text


async def test_the_series_of_a_model_end_with_its_last_version() -> None:
    """Else whoever loads and unloads under new names would fill the worker's memory."""
    async with running("cpu", BASE, ["cache.capture.background=false"]) as node:
        await ask(node, "affine", {"input": torch.randn(2, 4)})
        await node.admin.unload("affine")
        assert 'model="affine"' in node.worker.metrics.registry.text()
        await node.admin.unload("affine")
        assert 'model="affine"' not in node.worker.metrics.registry.text()


async def test_the_hint_of_a_refusal_is_its_own() -> None:
    """An unprofitable graph is not sent to the doctor."""
    async with running("cpu", BASE, ["cache.capture.min_gain=100%"]) as node:
        with pytest.raises(CaptureRefused, match="unprofitable"):
            await node.admin.warm("affine", "", {"batch": 2}, {}, force=False)
        explanation = node.admin.explain("affine", "", {"batch": 2}, {})
        assert explanation.detail.startswith("unprofitable")
        assert "buckets nearer to the traffic" in explanation.hint


async def test_a_plan_promises_nothing_of_a_bucket_that_was_refused() -> None:
    """Whatever is predicted of it. A bucket that only lacked bytes stays: the plan has a budget of its own."""
    async with running("cpu", BASE, ["cache.capture.background=false"]) as node:
        await ask(node, "affine", {"input": torch.randn(2, 4)})
        key = served(node, "affine").key((), Bucket.of(batch=2))
        for _ in range(5):
            node.observer._costs.load(key.signature, {key.bucket: (0.01, 0.001, 0.02, 100, 0)})
        for reason, planned in ((RefusalReason.MEMORY_BUDGET, 1), (RefusalReason.MISMATCH, 0)):
            node.capturer._progress.note(key, Progress(Stage.REFUSED, reason))
            plan = node.admin.plan("affine", "", {}, 1 << 20, 0, 0)
            assert len(plan.graphs) == planned
            assert (plan.alternatives[0].saved_s_per_s > 0.0) == bool(planned)
