"""What a running worker shows of itself: load, alarm, device."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pynvml
import pytest
import torch

from service.errors import CaptureRefused
from service.messages import GraphMode, InferRequest
from service.rpc.health import GRAPHS
from service.serving import Node
from service.telemetry.alarm import Threshold
from service.telemetry.device import DeviceMonitor
from tests.harness import MODULES, ask, host, running
from tests.instruments import slowed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

AFFINE = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
cache: {{capture: {{background: false}}}}
models: [{{name: affine, factory: "file:{MODULES}/affine.py", rows: independent, axes: {{batch: {{max: 4, buckets: [2, 4]}}}}}}]
"""
SLOW = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"], limits: {{waiting: 4}}}}
cache: {{capture: {{background: false}}}}
models: [{{name: slow, factory: "file:{MODULES}/slow.py", axes: {{batch: {{max: 128}}}}}}]
"""
X = {"input": torch.ones(2, 4)}


@asynccontextmanager
async def watched(*sets: str) -> AsyncIterator[Node]:
    """A worker whose alarm needs a few requests and no minutes."""
    async with running("cpu", AFFINE, sets) as node:
        node.observer._alarm._threshold = Threshold(hold_s=0.0, window_s=1.0)
        beating = asyncio.create_task(node.pulse.beat())
        try:
            yield node
        finally:
            beating.cancel()
            with suppress(asyncio.CancelledError):
                await beating


async def until_alarm(node: Node, on: bool) -> None:
    """Go on asking."""
    while bool(node.observer.alarms) is not on or node.health.serving(GRAPHS) is on:
        await ask(node, "affine", X)
        await asyncio.sleep(0.005)


async def refuse(node: Node) -> None:
    """The capture is refused."""
    slowed(node).times = 100
    with pytest.raises(CaptureRefused):
        await node.admin.warm("affine", "", {"batch": 2}, {}, force=False)


async def nothing(_: Node) -> None:
    """No preparation."""


async def switch_on(node: Node) -> None:
    """The mode and a graph."""
    node.admin.set_mode("affine", "", {}, GraphMode.AUTO, None)
    await node.admin.warm("affine", "", {"batch": 2}, {}, force=True)


async def pay(node: Node) -> None:
    """The budget and a graph."""
    await node.admin.set_budget(1 << 20)
    await node.admin.warm("affine", "", {"batch": 2}, {}, force=True)


async def force(node: Node) -> None:
    """A graph, whether it pays or not."""
    await node.admin.warm("affine", "", {"batch": 2}, {}, force=True)


@pytest.mark.parametrize(
    ("sets", "prepare", "cause", "repair"),
    [
        (
            ("models=" + AFFINE.partition("models: ")[2].replace("name: affine,", "name: affine, mode: none,").strip(),),
            nothing,
            "disabled",
            switch_on,
        ),
        (("cache.budget=0",), nothing, "memory_budget", pay),
        ((), refuse, "unprofitable", force),
    ],
    ids=["mode none", "budget 0", "captures refused"],
)
async def test_graphs_that_are_off_raise_the_alarm_and_their_repair_clears_it(
    sets: tuple[str, ...], prepare: Callable[[Node], Awaitable[None]], cause: str, repair: Callable[[Node], Awaitable[None]]
) -> None:
    """In the gauge, in the health details and by name; nothing else of the worker's health changes."""
    async with watched(*sets) as node:
        await prepare(node)
        await until_alarm(node, on=True)
        assert cause in node.observer.alarms["affine"]
        assert 'graphcache_graphs_effectively_off{model="affine"} 1.0' in node.worker.metrics.registry.text()
        assert node.observer.snapshot().models[0].alarm
        assert node.worker.ready
        await repair(node)
        await until_alarm(node, on=False)
        assert 'graphcache_graphs_effectively_off{model="affine"} 0.0' in node.worker.metrics.registry.text()


async def test_load_shows_waiting_work_and_how_near_the_limits_are() -> None:
    """Three of four may still come; each is predicted by what the step took before."""
    async with running("cpu", SLOW) as node:
        x = {"x": torch.ones(1, 4)}
        for _ in range(3):
            await ask(node, "slow", x)
        assert node.observer.load().saturation == 0
        waiting = [asyncio.create_task(node.worker.infer(InferRequest("slow", {"x": host(x["x"])}))) for _ in range(4)]
        await asyncio.sleep(0.02)
        load = node.observer.load()
        assert (load.waiting, load.running, load.saturation) == (4, 1, 1.0)
        assert load.backlog_s["replay"] == 0
        assert load.backlog_s["eager"] > 0.02
        await asyncio.gather(*waiting)
        assert node.observer.load().backlog_s["eager"] == 0


def test_the_driver_is_asked_at_most_once_a_second_and_may_know_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice has no utilisation of its own. No machine of these tests has such a device."""
    asked: list[str] = []

    def handle(uuid: str) -> str:
        asked.append(uuid)
        if uuid.startswith("GPU"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def memory(_: str) -> Any:
        asked.append("memory")
        return pynvml.c_nvmlMemory_t(free=1, total=3, used=2)

    def unsupported(_: str) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", handle)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", memory)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", unsupported)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetClockInfo", lambda _, domain: 1980 if domain == pynvml.NVML_CLOCK_SM else 2619)
    monitor = DeviceMonitor("abc")
    for _ in range(5):
        reading = monitor.read()
        assert reading is not None
        assert (reading.memory_used, reading.memory_total, reading.utilization) == (2, 3, None)
        assert reading.clocks == {"sm": 1.98e9, "memory": 2.619e9}
    assert asked == ["GPU-abc", "MIG-abc", "memory"]


def test_without_a_device_the_driver_is_not_asked() -> None:
    """A CPU has no such readings, and a machine may have no driver."""
    assert DeviceMonitor("").read() is None
    assert DeviceMonitor("no-such-device").read() is None
