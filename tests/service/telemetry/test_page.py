"""The status page in a real browser, beside a real worker."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from service.pb.graphcache.v1 import admin_pb2 as admin
from service.pb.graphcache.v1 import replay_pb2 as pb
from service.pb.graphcache.v1.admin_pb2_grpc import AdminServiceStub
from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceStub
from tests import browser
from tests.browser import Browser
from tests.harness import MODULES
from tests.process import worker_process

AXE = Path(__file__).parents[2] / "assets" / "axe.min.js.gz"
CONFIGURATION = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
cache: {{capture: {{background: false}}}}
models:
  - {{name: affine, factory: "file:{MODULES}/affine.py", rows: independent, axes: {{batch: {{max: 4, buckets: [2, 4]}}}}}}
  - {{name: other, factory: "file:{MODULES}/affine.py", rows: independent, axes: {{batch: {{max: 4, buckets: [2, 4]}}}}}}
"""
FOCUSED = "const e = document.activeElement; return e.id || e.getAttribute('href') || e.getAttribute('aria-label')"
LAST = "Table of recent requests"
TAB, DOWN = "\ue004", "\ue015"

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())]


@dataclass
class Worker:
    """A worker that was asked a little."""

    address: str
    channel: grpc.Channel
    admin_channel: grpc.Channel

    @property
    def admin(self) -> Any:
        """Its admin service."""
        return AdminServiceStub(self.admin_channel)

    def ask(self, rows: int, request_id: str = "") -> pb.ReplayResponse:
        """One request."""
        x = np.ones((rows, 4), np.float32)
        tensor = pb.Tensor(name="input", datatype="FP32", shape=x.shape, data=x.tobytes())
        reply = ReplayServiceStub(self.channel).Replay(pb.ReplayRequest(model="affine", id=request_id, inputs=[tensor]))
        assert isinstance(reply, pb.ReplayResponse)
        return reply


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """One resident graph, replays, fallbacks for two reasons, an eviction."""
    path = tmp_path_factory.mktemp("page") / "worker.yaml"
    path.write_text(CONFIGURATION)
    with (
        worker_process(("-c", str(path))) as addresses,
        grpc.insecure_channel(addresses.inference) as channel,
        grpc.insecure_channel(addresses.admin) as admin_channel,
    ):
        found = Worker(f"http://{addresses.metrics}/", channel, admin_channel)
        for rows in (2, 4):
            found.admin.Warm(admin.WarmRequest(model="affine", shape={"batch": rows}, force=True))
        found.admin.Evict(admin.EvictRequest(model="affine", shape={"batch": 2}))
        for rows in (1, 2, 3, 4, 3, 3):
            found.ask(rows)
        found.admin.SetGraphMode(admin.SetGraphModeRequest(model="affine", mode="none"))
        found.ask(4)
        found.admin.SetGraphMode(admin.SetGraphModeRequest(model="affine", mode="auto"))
        yield found


@pytest.fixture(scope="module")
def window(worker: Worker) -> Iterator[Browser]:
    """A browser that shows the page."""
    with browser.browser() as found:
        found.command("Network.enable")
        found.go(worker.address)
        found.until("#connection", "live")
        found.until("#reasons", "disabled")
        yield found


def test_it_loads_without_an_error_and_asks_nobody_else(worker: Worker, window: Browser) -> None:
    """No message on the console; every address that was asked is the worker's."""
    window.go(worker.address)
    window.until("#connection", "live")
    assert [entry["message"] for entry in window.log("browser")] == []
    messages = [json.loads(entry["message"])["message"] for entry in window.log("performance")]
    asked = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    assert {worker.address, worker.address + "page.js", worker.address + "page.css", worker.address + "events"} <= asked
    assert {url for url in asked if not url.startswith((worker.address, "data:"))} == set()


def test_it_shows_the_cache_map_the_traffic_and_the_timeline(window: Browser) -> None:
    """The resident bucket with hits, bytes and padding; every size that came; what was captured and evicted."""
    window.until("#map", "batch=4")
    shown = window.text("#map")
    for text in ("affine", "serving", "6 replays", "padding 50.0 %"):  # 16 rows in six buckets of 4
        assert text in shown
    assert window.run("return [...document.querySelectorAll('#traffic i')].map((bar) => bar.title)") == [
        "batch=1: 1 runs",
        "batch=2: 1 runs",
        "batch=3: 3 runs",
        "batch=4: 1 runs",
    ]
    timeline = window.text("#timeline")
    assert "captured" in timeline
    assert "evicted" in timeline
    assert "of 512 MiB" in window.text("#budget")
    assert "graphcache mode MODEL auto" in window.text("#reasons")


async def test_a_fallback_is_shown_with_its_hint_within_two_seconds(worker: Worker, window: Browser) -> None:
    """From the moment that the client has its answer."""
    worker.admin.SetGraphMode(admin.SetGraphModeRequest(model="affine", mode="none"))
    name = "<img src=x onerror=alert(1)>"  # what a client sends is text, never markup
    await asyncio.to_thread(worker.ask, 3, name)
    took = window.until("#recent", name, within_s=2.0)
    print(f"shown after {took:.2f} s")
    row = window.text("#recent tr")
    assert "disabled" in row
    assert "graphcache mode MODEL auto" in row
    worker.admin.SetGraphMode(admin.SetGraphModeRequest(model="affine", mode="auto"))


def test_the_model_can_be_chosen_by_keyboard_and_everything_can_be_reached(worker: Worker, window: Browser) -> None:
    """Tab goes through links, the choice, and each region that scrolls; none of them is a trap."""
    window.go(worker.address)
    window.until("#recent", "disabled")
    visited = []
    for _ in range(24):
        window.press(TAB)
        visited.append(window.run(FOCUSED))
        if visited[-1] == LAST:
            break
    assert visited[0] == "#content"
    assert [name for name in visited if name == "model" or name.startswith("Table")] == [
        "model",
        "Table of fallbacks",
        "Table of captures and evictions",
        LAST,
    ]
    assert "Traffic of affine by bucket" in visited
    window.run("document.getElementById('model').focus()")
    window.press(DOWN)
    window.press(DOWN)
    assert window.run("return document.getElementById('model').value") == "other"
    assert window.text("#recent") == ""
    window.press("\ue013")
    window.press("\ue013")


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing(window: Browser, dark: bool) -> None:
    """Names, roles, order of headings, contrast, in either colours."""
    window.dark(dark)
    window.run(gzip.decompress(AXE.read_bytes()).decode())
    found = window.run("return axe.run(document, {resultTypes: ['violations']})")
    assert found["testEngine"]["name"] == "axe-core"
    assert len(found["passes"]) > 15
    told = [
        f"{violation['id']}: {node['html']}: {node['failureSummary']}" for violation in found["violations"] for node in violation["nodes"]
    ]
    assert told == []
