"""A graph that goes wrong is found by the audit of a running worker, however it is padded, and whether or not the worker is ever idle."""

from __future__ import annotations

import asyncio
from pathlib import Path as FilePath

import pytest
import torch

from service.messages import Outcome, Path
from service.serving import Node
from tests.contracts.serving import spoil
from tests.harness import ask, running, settled, value
from tests.service.verification.benches import MODELS, file_module

EVERY = 5  # 20%
BATCHES = {"batch_mean": 4, "largest_of_batch": 3, "two_inputs": 3}  # exact size only; padded by a repeated row; padded by value


def config(path: FilePath) -> str:
    return f"""
worker: {{allowed_factories: ["file:{path.parent}/*.py"]}}
cache: {{audit: 20%, capture: {{background: false}}}}
models:
  - name: m
    factory: file:{path}
    axes: {{batch: {{max: 4, buckets: [4]}}}}
"""


async def send(node: Node, name: str, seed: int) -> Outcome:
    return (await ask(node, "m", file_module(MODELS / f"{name}.py").example_inputs(BATCHES[name], seed))).outcome


async def audited(node: Node) -> int:
    """Audit all that is kept; replays are counted after their answers were handed over. How many there were."""
    await asyncio.to_thread(node.lane.barrier)
    number = 0
    while await asyncio.to_thread(node.worker._audit.step):
        number += 1
    await settled(node)
    return number


@pytest.mark.parametrize("name", BATCHES)
async def test_a_wrong_graph_serves_at_most_as_many_replays_as_lie_between_two_audits(name: str) -> None:
    """The worker is idle in between: from the audited replay on, none is wrong."""
    async with running("cpu", config(MODELS / f"{name}.py")) as node:
        await node.admin.warm("m", "", {"batch": 4}, {}, force=True)
        for seed in range(3):
            assert (await send(node, name, seed)).path is Path.REPLAY
        await audited(node)
        spoil(next(iter(node.capturer.cache)))
        wrong = 0
        while (outcome := await send(node, name, 10 + wrong)).path is Path.REPLAY:
            wrong += 1
            await audited(node)
        assert wrong <= EVERY
        assert outcome.detail.startswith("mismatch")


async def test_a_worker_that_is_never_idle_is_audited_all_the_same() -> None:
    """Clients that wait for nothing but their replies leave no moment without a request."""
    async with running("cpu", config(MODELS / "two_inputs.py")) as node:
        await node.admin.warm("m", "", {"batch": 4}, {}, force=True)
        auditing = asyncio.create_task(node.worker.audit_when_idle())
        refused = asyncio.Event()

        async def client(seed: int) -> None:
            while not refused.is_set():
                outcome = await send(node, "two_inputs", seed)
                if str(outcome.reason) == "refused":
                    refused.set()

        clients = [asyncio.create_task(client(seed)) for seed in range(4)]
        spoil(next(iter(node.capturer.cache)))
        await refused.wait()
        await asyncio.gather(*clients)
        auditing.cancel()


async def test_what_went_wrong_once_is_answered_right_afterwards() -> None:
    """Eagerly, by the model itself."""
    async with running("cpu", config(MODELS / "two_inputs.py")) as node:
        file = file_module(MODELS / "two_inputs.py")
        await node.admin.warm("m", "", {"batch": 4}, {}, force=True)
        spoil(next(iter(node.capturer.cache)))
        inputs = file.example_inputs(3, 1)
        await ask(node, "m", inputs)
        assert await audited(node) == 1
        reply = await ask(node, "m", inputs)
        with torch.no_grad():
            torch.testing.assert_close(value(reply.outputs["output"]), file.make_model()(**inputs))
