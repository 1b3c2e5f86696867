"""The store of many hosts: Redis or Valkey, alone, behind Sentinel, or as a cluster. docs/profile.md shows the layout to people.

    graphcache:{NAME}:1:traffic                    sorted set of "WINDOW WORKER", scored by the window's start
    graphcache:{NAME}:1:traffic:WINDOW:WORKER      hash, one field for each shape; expires
    graphcache:{NAME}:1:costs                      sorted set of programs, scored by the last write
    graphcache:{NAME}:1:costs:PROGRAM              hash, one field for each environment and bucket; expires

NAME is the deployment's, in braces so that a cluster keeps all of it on one node; 1 is the schema's version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from service.errors import ConfigError
from service.stores.base import COSTS_KEPT_S, KEPT_S, MOST_PROGRAMS, MOST_WINDOWS, SCHEMA, Contents, CostRecord, StoreError, Window
from service.stores.records import Skipped, cost_field, cost_value, moment, read_cost, read_window, window_fields

T = TypeVar("T")
Client = Any  # Redis or RedisCluster: what both can do has no common type

DEFAULT_DEPLOYMENT = "default"
PATIENCE_S = 0.1  # a worker's, for a connection and for an answer
_AT_ONCE = 64  # hashes in one round trip
_PORT, _SENTINEL_PORT = 6379, 26379


# No retry anywhere: the next flush is one.
_OPTIONS: Mapping[str, Any] = {
    "decode_responses": True,
    "encoding_errors": "replace",
    "client_name": "graphcache",
}
_SETTABLE: Mapping[str, Callable[[str], Any]] = {  # by the URL's query
    "socket_timeout": float,
    "socket_connect_timeout": float,
    "ssl_ca_certs": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
}


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL says."""

    scheme: str
    nodes: tuple[tuple[str, int], ...]
    service: str  # of Sentinel
    deployment: str
    options: Mapping[str, Any]  # of the connections

    @property
    def kind(self) -> str:
        """Empty for one server, else sentinel or cluster."""
        return self.scheme.partition("+")[2]

    def __str__(self) -> str:
        return f"{self.scheme}://{','.join(f'{host}:{port}' for host, port in self.nodes)}"


def parse_url(text: str, patience_s: float = PATIENCE_S) -> Target:
    """redis:// and rediss:// for one server, with +sentinel or +cluster for many (docs/profile.md). Raises ConfigError without secrets."""
    try:
        return _parse(text, patience_s)
    except ValueError as error:
        raise ConfigError(f"profile_store: {error}") from None


def _parse(text: str, patience_s: float) -> Target:
    parts = urlsplit(text)
    query = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    kind = parts.scheme.partition("+")[2]
    nodes = _nodes(parts, _SENTINEL_PORT if kind == "sentinel" else _PORT)
    if len(nodes) > 1 and not kind:
        raise ValueError("names several hosts: say redis+sentinel:// or redis+cluster://")
    deployment = query.pop("deployment", DEFAULT_DEPLOYMENT)
    if not deployment or set(deployment) & set("{}: "):
        raise ValueError("deployment: can't be empty or have braces, colons or spaces")
    patience = {"socket_timeout": patience_s, "socket_connect_timeout": patience_s}
    options = {**_OPTIONS, **patience, "ssl": parts.scheme.startswith("rediss"), **_credentials(parts)}
    for name, value in query.items():
        if name not in _SETTABLE:
            raise ValueError(f"{name}: unknown; a URL takes deployment, {', '.join(_SETTABLE)}")
        options[name] = _SETTABLE[name](value)
    service, _, database = parts.path.strip("/").partition("/") if kind == "sentinel" else ("", "", parts.path.strip("/"))
    if kind == "sentinel" and not service:
        raise ValueError("Sentinel needs the service's name: redis+sentinel://HOST:PORT,HOST:PORT/SERVICE")
    if not database.isdecimal() and database:
        raise ValueError(f"the database must be a number, not {database!r}")
    if kind != "cluster":
        options["db"] = int(database or 0)
    return Target(parts.scheme, nodes, service, deployment, options)


class RedisStore:
    """A ProfileStore. A connection that had trouble, or whose command was cancelled, is never used again."""

    def __init__(self, url: str, skipped: Skipped, patience_s: float = PATIENCE_S) -> None:
        self.target = parse_url(url, patience_s)
        self._skipped = skipped
        self._prefix = f"graphcache:{{{self.target.deployment}}}:{SCHEMA}"
        self._clients: Sequence[Client] = ()  # the first is asked

    async def read(self, now: float) -> Contents:
        """See ProfileStore. Two round trips, and one more for every 64 hashes."""
        return await self._try(lambda client: self._read(client, now))

    async def write(self, windows: Sequence[Window], costs: Sequence[CostRecord], now: float) -> None:
        """See ProfileStore. One transaction, in a cluster one pipeline."""
        await self._try(lambda client: self._write(client, windows, costs, now))

    async def close(self) -> None:
        """See ProfileStore."""
        clients, self._clients = self._clients, ()
        for client in clients:
            with suppress(RedisError, OSError):
                await client.aclose()

    async def _try(self, work: Callable[[Client], Awaitable[T]]) -> T:
        if not self._clients:
            self._clients = _connect(self.target)
        try:
            return await work(self._clients[0])
        except BaseException as error:
            await self.close()
            if isinstance(error, RedisError | OSError):  # of which a time-out is one
                raise StoreError(f"{self.target}: {str(error) or type(error).__name__}") from error
            raise

    async def _read(self, client: Client, now: float) -> Contents:
        newest_first = {"desc": True, "byscore": True, "offset": 0}
        listed, programs = await self._ask(
            client,
            [
                ("zrange", (f"{self._prefix}:traffic", now + 1, now - KEPT_S), {**newest_first, "num": MOST_WINDOWS}),
                ("zrange", (f"{self._prefix}:costs", "+inf", now - COSTS_KEPT_S), {**newest_first, "num": MOST_PROGRAMS}),
            ],
        )
        named = [found for member in listed if (found := self._member(member)) is not None]
        hashes = [f"{self._prefix}:traffic:{moment(start)}:{worker}" for start, worker in named]
        hashes += [f"{self._prefix}:costs:{program}" for program in programs]
        fields: list[dict[str, str]] = []
        for begin in range(0, len(hashes), _AT_ONCE):
            fields += await self._ask(client, [("hgetall", (key,), {}) for key in hashes[begin : begin + _AT_ONCE]])
        return await asyncio.to_thread(self._understand, named, programs, fields)  # a tenth of a second that a request may not wait for

    def _understand(self, named: Sequence[tuple[int, str]], programs: Sequence[str], fields: Sequence[Mapping[str, str]]) -> Contents:
        windows = [read_window(start, worker, found, self._skipped) for (start, worker), found in zip(named, fields, strict=False)]
        costs = [
            read_cost(program, field, value, self._skipped)
            for program, found in zip(programs, fields[len(named) :], strict=True)
            for field, value in found.items()
        ]
        return Contents([window for window in windows if window is not None], [record for record in costs if record is not None])

    async def _ask(self, client: Client, commands: Sequence[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        """One round trip; a key of a wrong type is a bad record, answered as empty."""
        pipeline = client.pipeline(transaction=False)
        for name, arguments, options in commands:
            getattr(pipeline, name)(*arguments, **options)
        answers: list[Any] = []
        for answer, (name, _, _) in zip(await pipeline.execute(raise_on_error=False), commands, strict=True):
            if isinstance(answer, Exception):
                if not str(answer).startswith("WRONGTYPE"):
                    raise answer
                self._skipped()
                answers.append({} if name == "hgetall" else [])
            else:
                answers.append(answer)
        return answers

    async def _write(self, client: Client, windows: Sequence[Window], costs: Sequence[CostRecord], now: float) -> None:
        # redis-py runs a part of a cluster's transaction on an event loop of its own; in pieces, a reader may miss a window once
        pipeline = client.pipeline(transaction=self.target.kind != "cluster")
        index = f"{self._prefix}:traffic"
        for window in windows:
            key = f"{index}:{moment(window.start)}:{window.worker}"
            pipeline.delete(key)
            pipeline.hset(key, mapping=window_fields(window))
            pipeline.expire(key, KEPT_S)
            pipeline.zadd(index, {f"{moment(window.start)} {window.worker}": window.start})
        if windows:
            pipeline.zremrangebyscore(index, 0, now - KEPT_S)
            pipeline.expire(index, KEPT_S)
        index = f"{self._prefix}:costs"
        for program in {record.program: None for record in costs}:
            key = f"{index}:{program}"
            pipeline.hset(key, mapping={cost_field(record): cost_value(record, now) for record in costs if record.program == program})
            pipeline.expire(key, COSTS_KEPT_S)
            pipeline.zadd(index, {program: now})
        if costs:
            pipeline.zremrangebyscore(index, 0, now - COSTS_KEPT_S)
            pipeline.expire(index, COSTS_KEPT_S)
        await pipeline.execute()

    def _member(self, text: str) -> tuple[int, str] | None:
        when, _, worker = text.partition(" ")
        try:
            start = datetime.strptime(when, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        except ValueError:
            self._skipped()
            return None
        return int(start.timestamp()), worker


def _connect(target: Target) -> Sequence[Client]:
    """A client, and those that it asks where to go; nothing is sent yet."""
    retry = Retry(NoBackoff(), 0)
    match target.kind:
        case "sentinel":
            told = {name: value for name, value in target.options.items() if name not in ("db", "username", "password")}
            sentinel = Sentinel(target.nodes, sentinel_kwargs={**told, "retry": retry}, retry=retry, **target.options)  # type: ignore[no-untyped-call]
            return sentinel.master_for(target.service), *sentinel.sentinels
        case "cluster":
            nodes = [ClusterNode(host, port) for host, port in target.nodes]
            return (RedisCluster(startup_nodes=nodes, retry=retry, **target.options),)
        case _:
            host, port = target.nodes[0]
            return (Redis(host=host, port=port, retry=retry, **target.options),)


def _nodes(parts: SplitResult, default_port: int) -> tuple[tuple[str, int], ...]:
    found = []
    for text in parts.netloc.rpartition("@")[2].split(","):
        node = urlsplit(f"//{text}")
        if not node.hostname:
            raise ValueError("must name a host")
        found.append((node.hostname, node.port or default_port))
    return tuple(found)


def _credentials(parts: SplitResult) -> dict[str, str]:
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    told = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in told.items() if value}
