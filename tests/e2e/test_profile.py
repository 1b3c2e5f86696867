"""A worker that starts beside siblings, or after itself, is fast for their traffic from its first request on."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from textwrap import indent
from time import sleep
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.cli.traffic import trace
from service.pb.graphcache.v1 import admin_pb2, admin_pb2_grpc
from tests.harness import MODULES
from tests.process import Addresses, worker_process
from tests.samples import sample
from tests.valkey import valkey

pytestmark = pytest.mark.e2e

SECONDS = 6  # more than two flushes are apart
SPEED = 8.0
MODEL = f"""
name: m
factory: file:{MODULES}/drudge.py
rows: dependent
axes: {{batch: {{max: 64, buckets: [1, 2, 4, 8, 16, 32, 64]}}}}
"""
EMPTY = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
"""
CONFIG = f"""
{EMPTY}
models:
  -{indent(MODEL, "    ")}
"""


def started(stack: ExitStack, folder: Path, *sets: str, config: str = CONFIG) -> Addresses:
    file = folder / "worker.yaml"
    file.write_text(config)
    options = ("cache.prewarm.graphs=32", *sets)
    return stack.enter_context(worker_process(("-c", str(file), *(word for one in options for word in ("--set", one)))))


def await_start(addresses: Addresses) -> None:
    """Until the prewarm is over, as a startup probe sees it."""
    with grpc.insecure_channel(addresses.probe) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for reply in health.Watch(health_pb2.HealthCheckRequest(service="startup")):
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return


def driven(*workers: Addresses) -> list[float]:
    """The same part of the recorded trace for each of them at once; how much of it each has replayed."""

    def drive(addresses: Addresses) -> float:
        words = ["replay-trace", str(trace.bundled()), "--model", "m", "--speed", str(SPEED), "--seconds", str(SECONDS), "--json"]
        command = [sys.executable, "-m", "service", *words, "--address", addresses.inference]
        found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        assert found["models"]["m"]["requests"] > 50
        return float(found["hit_ratio"])

    with ThreadPoolExecutor(len(workers)) as pool:
        return list(pool.map(drive, workers))


def graphs(addresses: Addresses) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "service", "graphs", "--admin-address", addresses.admin, "--json"]
    found: list[dict[str, Any]] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def buckets(addresses: Addresses) -> set[int]:
    return {graph["bucket"]["batch"] for graph in graphs(addresses) if graph["state"] == "serving"}


def await_graphs(addresses: Addresses) -> None:
    """Until some serve and none is on its way."""
    while "serving" not in (states := {graph["state"] for graph in graphs(addresses)}) or states & {"pending", "capturing", "verifying"}:
        sleep(0.05)


def captured(addresses: Addresses) -> float:
    return sample(metrics(addresses), 'graphcache_captures_total{model="m",result="ok"}')


def metrics(addresses: Addresses) -> str:
    with urlopen(f"http://{addresses.metrics}/metrics") as page:
        text: str = page.read().decode()
        return text


def test_a_third_worker_hits_as_its_siblings_do(tmp_path: Path) -> None:
    """By way of a real server: captured before it is ready, measured by others, and used."""
    with valkey() as server, ExitStack() as stack:
        setting = f"profile_store={server.url}/?deployment=e2e"
        siblings = [started(stack, tmp_path, setting) for _ in range(2)]
        for sibling in siblings:
            await_start(sibling)
        driven(*siblings)
        third = started(stack, tmp_path, setting)
        await_start(third)
        prewarmed = sample(metrics(third), 'graphcache_prewarm_graphs{state="captured"}')
        assert prewarmed >= 1
        assert sample(metrics(third), 'graphcache_captures_total{model="m",result="unprofitable"}') == 0
        assert buckets(third) <= {1, 2, 4, 8, 16, 32, 64}
        *others, ratio = driven(*siblings, third)
        assert ratio >= 0.95 * max(others)
        assert min(others) > 0.5


def test_a_restarted_worker_hits_as_before(tmp_path: Path) -> None:
    """By way of the file in its folder."""
    with ExitStack() as stack:
        first = started(stack, tmp_path, f"worker.state_dir={tmp_path}")
        await_start(first)
        driven(first)
        (before,) = driven(first)
    with ExitStack() as stack:
        second = started(stack, tmp_path, f"worker.state_dir={tmp_path}")
        await_start(second)
        assert sample(metrics(second), 'graphcache_prewarm_graphs{state="captured"}') >= 1
        (after,) = driven(second)
    assert after >= 0.95 * before
    assert before > 0.5


def test_a_worker_that_is_told_not_to_wait_is_ready_at_once(tmp_path: Path) -> None:
    """It prewarms while it serves."""
    with ExitStack() as stack:
        first = started(stack, tmp_path, f"worker.state_dir={tmp_path}")
        await_start(first)
        driven(first)
    with ExitStack() as stack:
        second = started(stack, tmp_path, f"worker.state_dir={tmp_path}", "cache.prewarm.wait=false", "cache.prewarm.at_most=1h")
        await_start(second)
        (ratio,) = driven(second)
        assert ratio > 0.5


@pytest.mark.parametrize("kind", ["sqlite", "valkey"])
def test_a_model_that_is_loaded_later_hits_as_on_its_siblings(kind: str, tmp_path: Path) -> None:
    """By LoadModel: what others serve is captured without a request, and with what they measured. So it is again after a reload."""
    with ExitStack() as stack:
        setting = "sqlite" if kind == "sqlite" else f"{stack.enter_context(valkey()).url}/?deployment=e2e"
        sets = (f"worker.state_dir={tmp_path}", f"profile_store={setting}")
        sibling = started(stack, tmp_path, *sets)
        await_start(sibling)
        newcomer = started(stack, tmp_path, *sets, config=EMPTY)  # before there is anything to know
        driven(sibling)
        admin = admin_pb2_grpc.AdminServiceStub(stack.enter_context(grpc.insecure_channel(newcomer.admin)))
        admin.LoadModel(admin_pb2.LoadModelRequest(config_yaml=MODEL))
        await_graphs(newcomer)
        other, ratio = driven(sibling, newcomer)
        assert ratio >= 0.95 * other
        assert other > 0.5
        assert sample(metrics(newcomer), 'graphcache_captures_total{model="m",result="unprofitable"}') == 0
        before = captured(newcomer)
        admin.ReloadModel(admin_pb2.ReloadModelRequest(model="m"))
        while captured(newcomer) == before:
            sleep(0.05)
        assert buckets(newcomer)
