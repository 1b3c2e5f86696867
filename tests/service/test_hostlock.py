"""Workers of one host record one after the other, as long as that costs none of them more than a moment."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Event

import pytest
import torch

from cachepolicy.keys import GraphKey
from service.errors import Conflict
from service.hostlock import HostLock
from service.messages import Path as ServedBy
from service.serving import Node
from tests.harness import MODULES, ask, running
from tests.samples import sample

LONG_S = 600.0  # nobody waits so long in a test that works

HOLDER = """
import sys
from pathlib import Path
from service.hostlock import HostLock

with HostLock(Path(sys.argv[1]), between=lambda: None, unlocked=lambda: sys.exit("not had"), patience_s=600.0).held():
    print("held", flush=True)
    sys.stdin.read()
"""
WORKER = """
import json, sys
from pathlib import Path
from time import monotonic, sleep
from service.hostlock import HostLock

lock = HostLock(Path(sys.argv[1]), between=lambda: None, unlocked=lambda: sys.exit("not had"), patience_s=600.0)
sys.stdin.readline()
spans = []
for _ in range(20):
    with lock.held():
        began = monotonic()
        sleep(0.002)
        spans.append((began, monotonic()))
    sleep(0.001)
print(json.dumps(spans))
"""
MODEL = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
models:
  - name: m
    factory: file:{MODULES}/drudge.py
    rows: independent
    axes: {{batch: {{max: 4, buckets: [2, 4]}}}}
"""


def started(script: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def held_elsewhere(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process has it."""
    with started(HOLDER, path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


class Told:
    """What a lock calls."""

    def __init__(self) -> None:
        self.waited = self.unlocked = 0

    def between(self) -> None:
        self.waited += 1

    def without(self) -> None:
        self.unlocked += 1

    def lock(self, path: Path, patience_s: float) -> HostLock:
        return HostLock(path, between=self.between, unlocked=self.without, patience_s=patience_s)


def test_processes_hold_it_one_at_a_time(tmp_path: Path) -> None:
    """Three of them, twenty times each; the folder is made by whoever comes first."""
    path = tmp_path / "state" / "capture.lock"
    processes = [started(WORKER, path) for _ in range(3)]
    spans: list[tuple[float, float]] = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        out, _ = process.communicate()
        assert process.returncode == 0
        spans.extend((began, ended) for began, ended in json.loads(out))
    assert len(spans) == 60
    assert all(ended <= began for (_, ended), (began, _) in pairwise(sorted(spans)))


def test_a_holder_that_hangs_costs_one_wait(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Going without is counted each time and told once; once it was free it is waited for again."""
    caplog.set_level(logging.INFO, logger="service.hostlock")
    path, told = tmp_path / "capture.lock", Told()
    lock = told.lock(path, patience_s=0.1)

    def waits() -> bool:
        before = told.waited
        with lock.held():
            return told.waited > before

    with held_elsewhere(path) as other:
        os.kill(other.pid, signal.SIGSTOP)
        assert [waits() for _ in range(3)] == [True, False, False]
    assert told.unlocked == 3
    (line,) = [record.message for record in caplog.records]
    assert "another worker of this host" in line
    waits()
    with held_elsewhere(path):
        assert waits()
    assert told.unlocked == 4


def test_a_holder_that_is_killed_leaves_it_free(tmp_path: Path) -> None:
    """Without anybody who cleans up."""
    path, told = tmp_path / "capture.lock", Told()
    with held_elsewhere(path) as other:
        other.kill()
        with told.lock(path, LONG_S).held():
            pass
    assert told.unlocked == 0


def test_what_cannot_be_used_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "state").write_text("not a folder")
    told, done = Told(), 0
    lock = told.lock(tmp_path / "state" / "capture.lock", LONG_S)
    for _ in range(2):
        with lock.held():
            done += 1
    assert (done, told.unlocked, len(caplog.records)) == (2, 2, 1)


def test_what_is_raised_gives_it_back(tmp_path: Path) -> None:
    """Inside, or by what is done while waiting."""
    path, told = tmp_path / "capture.lock", Told()
    lock = told.lock(path, LONG_S)
    with pytest.raises(ZeroDivisionError), lock.held():
        _ = 1 // 0
    with held_elsewhere(path):

        def superseded() -> None:
            raise Conflict("unloaded")

        with pytest.raises(Conflict), HostLock(path, between=superseded, unlocked=told.without, patience_s=LONG_S).held():
            raise AssertionError("not had")
    with lock.held():
        pass
    assert told.unlocked == 0


def patient(node: Node) -> Event:
    """Have a worker wait as long as it takes; set once it waits."""
    host, waits = node.capturer._recorder._host, Event()
    host._patience_s, make_way = LONG_S, host._between

    def between() -> None:
        waits.set()
        make_way()

    host._between = between
    return waits


def unlocked(node: Node) -> float:
    return sample(node.worker.metrics.registry.text(), "graphcache_captures_unlocked_total")


async def test_a_capture_waits_for_another_worker_and_nobody_waits_for_the_capture(tmp_path: Path) -> None:
    """Requests run eagerly and a graph can be evicted meanwhile; it is captured once the other is done."""
    async with running("cpu", MODEL, [f"worker.state_dir={tmp_path}"]) as node:
        waits = patient(node)
        await node.admin.warm("m", "", {"batch": 4}, {}, force=True)
        with held_elsewhere(tmp_path / "capture.lock"):
            warm = node.capturer.warm(_key(node, 2), force=True)
            await asyncio.to_thread(waits.wait)
            assert await node.admin.evict("m", "", {"batch": 4}, {}) == 1
            outcome = (await ask(node, "m", {"x": torch.ones(1, 4)})).outcome
            assert (outcome.path, str(outcome.reason)) == (ServedBy.EAGER, "capture_pending")
            assert not warm.done()
        assert (await asyncio.wrap_future(warm)).key.bucket["batch"] == 2
        assert unlocked(node) == 0


async def test_a_forced_warm_goes_on_without_the_lock(tmp_path: Path) -> None:
    """Beside a worker that never gives it back, and that is counted."""
    async with running("cpu", MODEL, [f"worker.state_dir={tmp_path}"]) as node:
        node.capturer._recorder._host._patience_s = 0.02
        with held_elsewhere(tmp_path / "capture.lock"):
            assert (await node.admin.warm("m", "", {"batch": 4}, {}, force=True)).state == "serving"
        assert unlocked(node) == 1


async def test_a_model_is_unloaded_while_its_capture_waits(tmp_path: Path) -> None:
    """The wait ends with the capture's purpose."""
    async with running("cpu", MODEL, [f"worker.state_dir={tmp_path}"]) as node:
        waits = patient(node)
        with held_elsewhere(tmp_path / "capture.lock"):
            warm = node.capturer.warm(_key(node, 4), force=True)
            await asyncio.to_thread(waits.wait)
            await node.admin.unload("m")
            with pytest.raises(Conflict):
                await asyncio.wrap_future(warm)
        assert unlocked(node) == 0


def _key(node: Node, batch: int) -> GraphKey:
    model = node.worker.registry.get("m")
    bucket = model.ladder.fit({"batch": batch})
    assert bucket is not None
    return model.key((), bucket)
