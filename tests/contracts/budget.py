"""What the byte budget promises, whatever the device. Collected by tests/service/test_budget.py (CPU) and tests/gpu/test_budget.py."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch

from cachepolicy.keys import GraphKey
from service import measuring, serving
from service.errors import CaptureRefused
from service.messages import Outcome, Path
from service.serving import Node
from tests.harness import MODULES, ask, eager, running, served, value
from tests.instruments import slowed, watched_budget

WIDTH = 64


def fleet(models: int) -> str:
    """Equal models under different names."""
    lines = "\n".join(
        f"""
  - name: m{number}
    factory: service.models.demo:mlp
    args: {{width: {WIDTH}, hidden: 128, seed: {number}}}
    inputs: {{x: {{datatype: FP32, shape: [batch, {WIDTH}]}}}}
    outputs: {{y: {{datatype: FP32, shape: [batch, {WIDTH}]}}}}
    axes: {{batch: {{max: 16, buckets: [1, 2, 4, 8, 16], above: split}}}}
    rows: independent"""
        for number in range(models)
    )
    return f"models:{lines}\n"


DRUDGE = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
models:
  - {{name: m, factory: "file:{MODULES}/drudge.py", rows: independent, axes: {{batch: {{max: 4, buckets: [4]}}}}}}
"""


async def check(node: Node, model: str, batch: int, rng: torch.Generator) -> Outcome:
    """One request, whose answer has to be the model's own."""
    x = torch.randn(batch, WIDTH, generator=rng)
    reply = await ask(node, model, {"x": x})
    want = eager(served(node, model).loaded, {"x": x})["y"]
    torch.testing.assert_close(value(reply.outputs["y"]), want, rtol=1e-4, atol=1e-5)
    return reply.outcome


def keys_of(node: Node, model: str) -> list[GraphKey]:
    """The keys of all buckets of a model."""
    found = served(node, model)
    return [found.key((), bucket) for bucket in found.ladder.buckets()]


async def test_random_captures_and_evictions_hold_the_budget_and_harm_no_survivor(device: str, tight: int) -> None:
    """Whatever comes and goes, used bytes stay within the budget, and each graph that is left gives its model's answers."""
    rng, values = random.Random(4), torch.Generator().manual_seed(4)
    async with running(device, fleet(3), ["cache.capture.background=false", f"cache.budget={tight}B"]) as node:
        cache = node.capturer.cache
        replayed = 0
        with watched_budget(node) as over:
            for _ in range(60):
                model = f"m{rng.randrange(3)}"
                key = rng.choice(keys_of(node, model))
                if rng.random() < 0.7:
                    try:
                        await node.admin.warm(model, "", key.bucket.as_dict(), {}, force=True)
                    except CaptureRefused as refusal:
                        assert refusal.reason == "memory_budget"  # noqa: PT017
                else:
                    await node.admin.evict(model, "", key.bucket.as_dict(), {})
                for entry in list(cache):
                    name = entry.key.signature.model
                    outcome = await check(node, name, entry.key.bucket["batch"], values)
                    replayed += outcome.path is Path.REPLAY
                cache.check_integrity()
        assert not over, f"over the budget of {cache.budget}: {over[:5]}"
        assert replayed > 50


async def test_ten_models_share_a_small_budget_under_load_without_a_failed_request(device: str, tight: int) -> None:
    """The policy follows traffic that moves from model to model; every answer is right."""
    values = torch.Generator().manual_seed(5)
    async with running(device, fleet(10), [f"cache.budget={tight}B"]) as node:
        paths: dict[Path, int] = dict.fromkeys(Path, 0)
        with watched_budget(node) as over:

            async def client(number: int) -> None:
                rng = random.Random(number)
                for step in range(120):
                    favourite = (number + step // 40 * 3) % 10
                    model = favourite if rng.random() < 0.8 else rng.randrange(10)
                    outcome = await check(node, f"m{model}", rng.choice((1, 2, 3, 6, 13)), values)
                    paths[outcome.path] += 1

            await asyncio.gather(*(client(number) for number in range(6)))
        assert not over
        assert sum(paths.values()) == 720
        node.capturer.cache.check_integrity()


async def test_the_budget_shrinks_under_load_without_a_failed_request(device: str, tight: int) -> None:
    """Requests go on while most graphs are destroyed; what is used settles within the new budget before the call returns."""
    values = torch.Generator().manual_seed(6)
    async with running(device, fleet(3), ["cache.capture.background=false", f"cache.budget={tight * 4}B"]) as node:
        for model in ("m0", "m1", "m2"):
            for key in reversed(keys_of(node, model)):
                await node.admin.warm(model, "", key.bucket.as_dict(), {}, force=True)
        done = asyncio.Event()

        async def client(number: int) -> None:
            rng = random.Random(number)
            while not done.is_set():
                await check(node, f"m{rng.randrange(3)}", rng.randint(1, 16), values)

        clients = [asyncio.create_task(client(number)) for number in range(4)]
        await asyncio.sleep(0.1)
        before = node.capturer.cache.used
        change = await node.admin.set_budget(before // 4)
        assert change.used == node.capturer.cache.used <= change.budget == before // 4
        assert change.freed > 0
        await asyncio.sleep(0.1)
        done.set()
        await asyncio.gather(*clients)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resident graphs are judged more often, and refusals age faster."""
    monkeypatch.setattr(measuring, "SHARE", 0.5)
    monkeypatch.setattr(measuring, "_RESTED_S", 0.2)
    monkeypatch.setattr(serving, "RETRY_S", 1.0)


async def test_a_replay_that_became_slow_is_retired_and_returns_when_the_cause_is_gone(device: str, hasty: None) -> None:
    """It is refused with figures, tried again ever more seldom while it is slow, and serves again afterwards."""
    async with running(device, DRUDGE) as node:
        dial = slowed(node)
        await until(node, "replay")
        dial.times = 500
        outcome = await until(node, "refused")
        assert outcome.detail.startswith("unprofitable: batch=3: eager")
        for _ in range(150):  # three seconds: tried after one, and after two more at the earliest
            assert (await one(node)).path is Path.EAGER
            await asyncio.sleep(0.02)
        text = node.worker.metrics.registry.text()
        assert 'graphcache_captures_total{model="m",result="ok"} 1.0' in text
        dial.times = 1
        await until(node, "replay")


async def one(node: Node) -> Outcome:
    """A request to the drudge."""
    return (await ask(node, "m", {"x": torch.ones(3, 4)})).outcome


async def until(node: Node, wanted: str) -> Outcome:
    """Requests until the path or reason is this."""
    for _ in range(2000):
        outcome = await one(node)
        if str(outcome.reason or outcome.path) == wanted:
            return outcome
        await asyncio.sleep(0.02)
    raise AssertionError(f"never {wanted}, at last {outcome}")
