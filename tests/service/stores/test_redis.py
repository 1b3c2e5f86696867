"""What is Redis' own: URLs, rights, clusters, Sentinel, and a layout that people can read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

from service.errors import ConfigError
from service.stores.base import ProfileStore, StoreError
from service.stores.redis_store import RedisStore, parse_url
from tests.service.stores.conftest import Skips
from tests.service.stores.things import NOW, cost, window
from tests.valkey import Server, command, keys, valkey

DOCUMENTED = (Path(__file__).parents[3] / "docs" / "profile.md").read_text().splitlines()


async def round_trip(store: ProfileStore) -> None:
    await store.write([window()], [cost()], NOW)
    found = await store.read(NOW)
    assert [read.worker for read in found.windows] == ["one-a1"]
    assert found.costs == [cost()]
    await store.close()


async def test_the_layout_is_the_documented_one(server: Server, skips: Skips) -> None:
    """Keys, types, fields and expiry."""
    store = RedisStore(f"{server.url}?deployment=prod", skips)
    await store.write([window()], [cost()], NOW)
    await store.close()
    traffic, costs = "graphcache:{prod}:1:traffic", "graphcache:{prod}:1:costs"
    hashed = f"{traffic}:2027-01-15T08:00:00Z:one-a1"
    assert keys(server) == sorted([traffic, hashed, costs, f"{costs}:p1"])
    with server.client() as client:
        assert client.zrange(traffic, 0, -1, withscores=True) == [("2027-01-15T08:00:00Z one-a1", 1_800_000_000.0)]
        assert client.hgetall(hashed) == {
            "@worker": "one-a1",
            "@window": "2027-01-15T08:00:00Z",
            "@seconds": "300",
            '{"model": "encoder", "variant": {"adapter": "legal", "branch": "a b"}, "phase": "prefill",'
            ' "shape": {"batch": 4, "seq": 57}}': "7",
        }
        assert client.hgetall(f"{costs}:p1") == {
            '{"environment": "e1", "bucket": {"batch": 8}}': '{"eager_s": 0.004, "replay_s": 0.002, "capture_s": 0.05, "bytes": 4096,'
            ' "arena_bytes": 8192, "model": "encoder", "device": "NVIDIA H200", "measured": "2027-01-15T08:05:00Z"}'
        }
        assert all(0 < client.ttl(key) <= 30 * 24 * 3600 for key in keys(server))


async def test_deployments_do_not_see_each_other(server: Server, skips: Skips) -> None:
    """One server, two fleets."""
    one, other = RedisStore(f"{server.url}?deployment=one", skips), RedisStore(f"{server.url}?deployment=other", skips)
    await one.write([window()], [cost()], NOW)
    found = await other.read(NOW)
    assert (found.windows, found.costs) == ([], [])
    await one.close()
    await other.close()


async def test_a_record_under_anothers_key_is_not_taken_for_it(server: Server, skips: Skips) -> None:
    """What a window belongs to is told inside it."""
    store = RedisStore(server.url, skips)
    await store.write([window("one"), window("two")], [], NOW)
    prefix = "graphcache:{default}:1:traffic:2027-01-15T08:00:00Z"
    command(server, "COPY", f"{prefix}:one", f"{prefix}:two", "REPLACE")
    assert [read.worker for read in (await store.read(NOW)).windows] == ["one"]
    assert skips.count == 1
    await store.close()


async def test_the_documented_rights_are_enough_and_no_more_than_needed(server: Server, skips: Skips) -> None:
    """A user with the prefix's keys and a dozen commands; the worker's own keys are all that it can touch."""
    (line,) = [text.strip() for text in DOCUMENTED if "ACL SETUSER" in text]
    words = line.replace("PASSWORD", "pw").replace("NAME", "prod").split()
    assert command(server, *words) == "OK"
    await round_trip(RedisStore(f"redis://graphcache:pw@127.0.0.1:{server.port}/?deployment=prod", skips))
    stranger = RedisStore(f"redis://graphcache:pw@127.0.0.1:{server.port}/?deployment=stage", skips)
    with pytest.raises(StoreError, match="No permissions"):
        await stranger.read(NOW)
    await stranger.close()
    command(server, "ACL", "DELUSER", "graphcache")


async def test_a_wrong_password_names_no_secret(server: Server, skips: Skips) -> None:
    """Only the server and what it said."""
    store = RedisStore(f"redis://me:hunter2@127.0.0.1:{server.port}", skips)
    with pytest.raises(StoreError) as caught:
        await store.read(NOW)
    assert "hunter2" not in str(caught.value)
    assert f"127.0.0.1:{server.port}" in str(caught.value)


async def test_a_cluster_keeps_a_deployment_on_one_node(skips: Skips) -> None:
    """By the hash tag: one transaction, one pipeline."""
    with valkey("--cluster-enabled", "yes") as server:
        command(server, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        started = monotonic()
        while "cluster_state:ok" not in str(command(server, "CLUSTER", "INFO")) and monotonic() < started + 20:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await round_trip(RedisStore(f"redis+cluster://127.0.0.1:{server.port}?socket_timeout=1", skips))


@contextmanager
def sentinel(server: Server, folder: Path) -> Iterator[int]:
    """A sentinel that watches a server; its port."""
    file = folder / "sentinel.conf"
    file.write_text(f"sentinel monitor profiles 127.0.0.1 {server.port} 1\n")
    watching = Server((), folder=str(folder))
    watching.start(str(file), "--sentinel")
    try:
        yield watching.port
    finally:
        watching.kill()


async def test_sentinel_names_the_server(server: Server, tmp_path: Path, skips: Skips) -> None:
    """By the service's name."""
    with sentinel(server, tmp_path) as port:
        await round_trip(RedisStore(f"redis+sentinel://127.0.0.1:{port}/profiles?socket_timeout=1", skips))


@pytest.mark.parametrize(
    ("url", "nodes", "options"),
    [
        ("redis://cache", (("cache", 6379),), {"db": 0, "ssl": False}),
        ("rediss://u%40x:p%3Aw@cache:7000/3", (("cache", 7000),), {"db": 3, "ssl": True, "username": "u@x", "password": "p:w"}),
        ("redis://[::1]:7000", (("::1", 7000),), {}),
        ("redis+sentinel://a,b:7/name/2", (("a", 26379), ("b", 7)), {"db": 2}),
        ("rediss+cluster://:pw@a,b", (("a", 6379), ("b", 6379)), {"ssl": True, "password": "pw"}),
        ("redis://cache?socket_timeout=0.5&ssl_ca_certs=/ca.pem", (("cache", 6379),), {"socket_timeout": 0.5, "ssl_ca_certs": "/ca.pem"}),
    ],
)
def test_a_url_says_where_and_how(url: str, nodes: tuple[tuple[str, int], ...], options: dict[str, object]) -> None:
    """Hosts, ports, database, TLS and credentials."""
    target = parse_url(url)
    assert target.nodes == nodes
    assert options.items() <= dict(target.options).items()


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret@",
        "redis://me:secret@a,b",
        "redis://me:secret@a:99999",
        "redis://me:secret@a/x",
        "redis://me:secret@a?nope=1",
        "redis://me:secret@a?socket_timeout=long",
        "redis://me:secret@a?deployment=a:b",
        "redis+sentinel://me:secret@a",
        "redis+cluster://me:secret@a/1x",
    ],
)
def test_a_wrong_url_is_one_line_without_the_password(url: str) -> None:
    """It names the key of the configuration."""
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert str(caught.value).startswith("profile_store: ")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
