"""Whatever happens to the profile store while a worker serves: no request fails, one warning, a count, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import time

import pytest
import torch

from cachepolicy.profile import TrafficProfile, Workload, shape_of
from service.profiling import Breaker
from service.serving import Node
from service.stores.base import StoreError, Window
from service.stores.opening import open_store
from service.stores.sqlite_store import SqliteStore
from tests.harness import MODULES, ask, running
from tests.samples import sample
from tests.valkey import Server, SlowLink, command, valkey

CONFIG = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"], name: one}}
models:
  - name: m
    factory: file:{MODULES}/affine.py
    rows: dependent
    axes: {{batch: {{max: 8}}}}
"""
INDEX = "graphcache:{default}:1:traffic"
Fault = Callable[[Server], AbstractContextManager[object]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flushes and attempts follow one another at once, so that a fault meets many of them."""
    monkeypatch.setattr("service.profiling.FLUSH_S", 0.05)
    monkeypatch.setattr("service.profiling.Breaker", lambda: Breaker(first_s=0.05, longest_s=0.1))


@dataclass
class Requests:
    """One request after the other, and what became of them."""

    node: Node
    answered: int = 0
    failed: list[str] = field(default_factory=list)
    over: bool = False

    async def run(self) -> None:
        while not self.over:
            try:
                await ask(self.node, "m", {"input": torch.ones(3, 4)})
                self.answered += 1
            except Exception as error:  # noqa: BLE001 - whatever a client would see
                self.failed.append(repr(error))
            await asyncio.sleep(0.002)


@asynccontextmanager
async def serving(setting: str, folder: Path) -> AsyncIterator[tuple[Node, Requests]]:
    """A worker under load, that writes its profile all the time."""
    sets = [f"profile_store={setting}", f"worker.state_dir={folder}", "cache.capture.background=false"]
    async with running("cpu", CONFIG, sets) as node:
        await node.profiling.read()
        requests = Requests(node)
        load, writing = asyncio.create_task(requests.run()), asyncio.create_task(node.profiling.run())
        yield node, requests
        requests.over = True
        await load
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await asyncio.sleep(0.2)  # the breaker lets through again
        await node.profiling.close()


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    """Warnings of outages."""
    return sum(record.levelno >= logging.WARNING and "serving goes on without it" in record.message for record in caplog.records)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for is far away and has no event
        await asyncio.sleep(0.01)


def errors(node: Node, op: str) -> float:
    return sample(node.prewarm.metrics.registry.text(), f'graphcache_profile_store_errors_total{{op="{op}"}}')


async def stored(setting: str, folder: Path) -> float:
    """Runs in the store."""
    store = open_store(setting, folder, lambda: None)
    assert store is not None
    found = await store.read(time())
    await store.close()
    return sum(tally.total for window in found.windows for tally in window.traffic.tallies.values())


@contextmanager
def killed(server: Server) -> Iterator[None]:
    server.kill()
    yield
    server.start()


@contextmanager
def read_only(server: Server) -> Iterator[None]:
    command(server, "REPLICAOF", "127.0.0.1", "1")
    yield
    command(server, "REPLICAOF", "NO", "ONE")


@contextmanager
def locked_out(server: Server) -> Iterator[None]:
    command(server, "CONFIG", "SET", "requirepass", "secret")
    with server.client(password="secret") as client:  # noqa: S106 - a test's
        client.client_kill_filter(_type="normal", skipme=True)
        yield
        client.config_set("requirepass", "")


@contextmanager
def full(server: Server) -> Iterator[None]:
    command(server, "CONFIG", "SET", "maxmemory", "1")
    yield
    command(server, "CONFIG", "SET", "maxmemory", "0")


@contextmanager
def wrong_type(server: Server) -> Iterator[None]:
    command(server, "SET", INDEX, "somebody else's")
    yield
    command(server, "DEL", INDEX)


FAULTS: dict[str, Fault] = {
    "killed": killed,
    "frozen": lambda server: server.frozen(),
    "read only": read_only,
    "wrong password": locked_out,
    "full": full,
    "wrong type": wrong_type,
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_while_serving_goes_unnoticed_by_requests(fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """None fails; one warning and counted errors; every run is in the store afterwards, once."""
    caplog.set_level(logging.INFO)
    with valkey() as server:
        async with serving(server.url, tmp_path) as (node, requests):
            await until(lambda: requests.answered > 100)
            with FAULTS[fault](server):
                await until(lambda: errors(node, "write") >= 3)
                before = requests.answered
                await until(lambda: requests.answered > before + 50)
            await until(lambda: "profile store: is back" in caplog.text)
        assert not requests.failed
        assert await stored(server.url, tmp_path) == requests.answered
    assert warnings(caplog) == 1
    assert "secret" not in caplog.text


async def test_a_server_that_is_absent_at_start_is_used_once_it_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The worker starts without it, and writes everything later."""
    caplog.set_level(logging.INFO)
    with valkey(start=False) as server:
        async with serving(server.url, tmp_path) as (node, requests):
            assert errors(node, "read") == 1
            await until(lambda: requests.answered > 50)
            server.start()
            await until(lambda: "profile store: is back" in caplog.text)
        assert not requests.failed
        assert await stored(server.url, tmp_path) == requests.answered
    assert warnings(caplog) == 1


async def test_an_empty_restart_loses_nothing_of_the_window(tmp_path: Path) -> None:
    """What was written before is written again with what came after."""
    with valkey() as server:
        async with serving(server.url, tmp_path) as (_, requests):
            await until(lambda: requests.answered > 100)
            server.kill()
            server.start()
            before = requests.answered
            await until(lambda: requests.answered > before + 100)
        assert not requests.failed
        assert await stored(server.url, tmp_path) == requests.answered


async def test_garbage_and_other_schema_versions_are_left_out(tmp_path: Path) -> None:
    """What is not valid is skipped and counted, record by record; what is not ours is neither read nor touched."""
    with valkey() as server:
        await write(server.url, tmp_path)
        with server.client() as client:
            (key,) = client.scan_iter(f"{INDEX}:*")
            client.hset(
                key, mapping={"not json": "1", '{"model": "m"}': "1", '{"model": "m", "shape": {"batch": -1}}': "2", "[" * 100_000: "3"}
            )
            client.hset(key, mapping={'{"model": "m", "shape": {"batch": 2}}': "nan", '{"model": "m", "shape": {"batch": 5}}': "1e400"})
            client.zadd(INDEX, {"not a window": time(), "2026-01-01T00:00:00Z gone": time()})
            client.set(f"{INDEX}:2026-01-01T00:00:00Z:gone", "wrong type")
            client.execute_command("HSET", key, b"\xff\xfe", b"\x00\xff")
            client.zadd(INDEX.replace(":1:", ":2:"), {"later": 1})
            client.set("graphcache:{default}:2:anything", "of another version")
        async with serving(server.url, tmp_path) as (node, requests):
            assert errors(node, "record") == 9
            assert errors(node, "read") == 0
            assert node.profiling.others.tallies[Workload("m")].shapes() == {shape_of({"batch": 4}): pytest.approx(10.0, rel=0.2)}
            await until(lambda: requests.answered > 20)
        assert not requests.failed
        assert errors(node, "write") == 0
        assert command(server, "GET", "graphcache:{default}:2:anything") == "of another version"


async def write(setting: str, folder: Path, worker: str = "other", runs: float = 10.0) -> None:
    store = open_store(setting, folder, lambda: None)
    assert store is not None
    start = int(time() // 600 * 600)
    traffic = TrafficProfile(float(start))
    traffic.note(Workload("m"), shape_of({"batch": 4}), start, runs)
    traffic.watch(60.0, start)
    await store.write([Window(start, worker, traffic)], [], time())
    await store.close()


async def test_a_slow_link_delays_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A tenth of a second each way is too slow to be waited for; once it is quick, everything is written."""
    caplog.set_level(logging.INFO)
    with valkey() as server:
        link = SlowLink(server.port)
        async with link.up() as url, serving(url, tmp_path) as (node, requests):
            await until(lambda: errors(node, "write") >= 3)
            assert requests.answered
            link.delay_s = 0.0
            await until(lambda: "profile store: is back" in caplog.text)
        assert not requests.failed
        assert await stored(server.url, tmp_path) == requests.answered
    assert warnings(caplog) == 1


async def test_a_slow_link_that_is_given_time_works(tmp_path: Path) -> None:
    """By the URL."""
    with valkey() as server:
        async with SlowLink(server.port).up() as url:
            await write(f"{url}?socket_timeout=2&socket_connect_timeout=2", tmp_path)
        assert await stored(server.url, tmp_path) == 10.0


async def test_cancelled_commands_leave_every_answer_with_its_question(tmp_path: Path) -> None:
    """Reads that are cancelled at any moment, on one store: what a later one reads is whole and under its own name."""
    with valkey() as server:
        for number in range(8):
            await write(server.url, tmp_path, f"w{number}", runs=float(number + 1))
        skipped = 0

        def skip() -> None:
            nonlocal skipped
            skipped += 1

        link = SlowLink(server.port, delay_s=0.004)
        async with link.up() as url:
            store = open_store(f"{url}?socket_timeout=2", tmp_path, skip)
            assert store is not None
            for attempt in range(60):
                task = asyncio.create_task(store.read(time()))
                await asyncio.sleep(0.001 * (attempt % 30))
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if attempt % 5 == 0:
                    found = await store.read(time())
                    assert {w.worker: w.traffic.tallies[Workload("m")].total for w in found.windows} == {f"w{n}": n + 1.0 for n in range(8)}
            await store.close()
        assert skipped == 0


# -- SQLite


@contextmanager
def sqlite_locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


@contextmanager
def overwritten(path: Path) -> Iterator[None]:
    for file in (path, Path(f"{path}-wal")):
        file.write_bytes(b"no database " * 4000)
    yield


@contextmanager
def truncated(path: Path) -> Iterator[None]:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 + 100])
    yield


@contextmanager
def deleted(path: Path) -> Iterator[None]:
    path.unlink()
    yield


SQLITE_FAULTS: dict[str, Callable[[Path], AbstractContextManager[None]]] = {
    "locked": sqlite_locked,
    "garbage": overwritten,
    "truncated": truncated,
    "deleted": deleted,
}


@pytest.mark.parametrize("fault", SQLITE_FAULTS)
async def test_a_fault_of_the_file_goes_unnoticed_by_requests(fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Locked by another process, overwritten, cut in half, deleted: a new file is begun where need be, and the window is whole again."""
    caplog.set_level(logging.INFO)
    path = tmp_path / "profile.1.sqlite3"
    async with serving("sqlite", tmp_path) as (node, requests):
        await until(lambda: requests.answered > 100)
        with SQLITE_FAULTS[fault](path):
            if fault == "locked":
                await until(lambda: errors(node, "write") >= 3)
            if fault == "garbage":  # which the worker, whose pages are in memory, is not the first to see
                with pytest.raises(StoreError, match="was set aside"):
                    await stored("sqlite", tmp_path)
            before = requests.answered
            await until(lambda: requests.answered > before + 200)
        before = requests.answered
        await until(lambda: requests.answered > before + 100)
    assert not requests.failed
    assert await stored("sqlite", tmp_path) == requests.answered
    assert warnings(caplog) <= 1
    aside = [file for file in tmp_path.iterdir() if ".broken-" in file.name]  # noqa: ASYNC240 - a test may block
    assert bool(aside) == (fault == "garbage") or fault == "truncated"  # of which the log may hold what is missing


@pytest.mark.parametrize("content", [b"no database at all", b"SQLite format 3\x00" + b"\x00" * 4000, bytes(range(256)) * 64])
async def test_a_file_that_is_no_database_is_set_aside(content: bytes, tmp_path: Path) -> None:
    """Its bytes are kept under another name; a second process that finds the new file leaves it in place."""
    path = tmp_path / "profile.1.sqlite3"
    path.write_bytes(content)
    first, second = open_store("sqlite", tmp_path, lambda: None), open_store("sqlite", tmp_path, lambda: None)
    assert first is not None
    assert second is not None
    with pytest.raises(StoreError, match="was set aside"):
        await first.read(time())
    await first.read(time())
    await second.read(time())
    (aside,) = tmp_path.glob("*.broken-*")  # noqa: ASYNC240 - a test may block
    assert aside.read_bytes() == content
    await first.close()
    await second.close()


async def test_a_folder_that_can_not_be_written_leaves_the_worker_without_a_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file stands where the folder should be; requests don't notice."""
    folder = tmp_path / "state"
    folder.write_text("not a folder")
    async with serving("sqlite", folder) as (node, requests):
        await until(lambda: errors(node, "write") >= 3)
        assert requests.answered
    assert not requests.failed
    assert warnings(caplog) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="giving up rights takes root")
async def test_a_read_only_folder_is_an_error_of_the_store(tmp_path: Path) -> None:
    """Seen by a process that may read the file and not write it."""
    await write("sqlite", tmp_path)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    script = (
        "import asyncio, os, pathlib, time; from service.stores.sqlite_store import SqliteStore; os.setgid(65534); os.setuid(65534)\n"
        f"asyncio.run(SqliteStore(pathlib.Path({str(tmp_path)!r}), lambda: None).write([], [], time.time()))"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stderr=asyncio.subprocess.PIPE)
    _, told = await process.communicate()
    assert process.returncode == 1
    assert b"service.stores.base.StoreError: " in told
    assert not list(tmp_path.glob("*.broken-*"))  # noqa: ASYNC240 - a test may block


async def test_a_full_disk_is_an_error_of_the_store(tmp_path: Path) -> None:
    """What was there stays; once there is room the same window is written."""
    store = SqliteStore(tmp_path, lambda: None)
    await store.read(time())
    assert store._open is not None
    connection = store._open[0]
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    window = Window(int(time() // 600 * 600), "one", TrafficProfile(time()))
    for number in range(300):
        window.traffic.note(Workload("m" * 100 + str(number)), shape_of({"batch": 4}), time())
    with pytest.raises(StoreError, match="full"):
        await store.write([window], [], time())
    await store.write([window], [], time())  # by a new connection, whose room is not bounded
    assert await stored("sqlite", tmp_path) == pytest.approx(300, rel=0.01)
    assert not list(tmp_path.glob("*.broken-*"))  # noqa: ASYNC240 - a test may block
    await store.close()
