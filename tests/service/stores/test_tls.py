"""rediss://: a real server behind an end that speaks TLS. Whoever is not who it should be is told nothing, and nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from service.profiling import PATIENCE_S
from service.stores.base import StoreError
from service.stores.redis_store import RedisStore
from tests.service.stores.conftest import Skips
from tests.service.stores.things import NOW, cost, window
from tests.tls import Authority, tls_end
from tests.valkey import Server, keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATIENT = "socket_timeout=10&socket_connect_timeout=10"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Whom worker and server trust."""
    return Authority(tmp_path_factory.mktemp("tls"))


def store(port: int, skips: Skips, *parameters: str, host: str = "127.0.0.1", told: Sequence[str] = (PATIENT,)) -> RedisStore:
    return RedisStore(f"rediss://{host}:{port}?{'&'.join((*parameters, *told))}", skips)


async def round_trip(opened: RedisStore) -> None:
    await opened.write([window()], [cost()], NOW)
    found = await opened.read(NOW)
    assert [read.worker for read in found.windows] == ["one-a1"]
    assert found.costs == [cost()]
    await opened.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_what_is_written_by_tls_is_read_by_tls(host: str, server: Server, skips: Skips, authority: Authority) -> None:
    """By a certificate for the address or the name that the URL has."""
    async with tls_end(server.port, authority.sign("server")) as port:
        await round_trip(store(port, skips, f"ssl_ca_certs={authority.certificate}", host=host))
    assert keys(server)


async def test_a_certificate_of_the_worker_is_shown_where_the_server_wants_one(server: Server, skips: Skips, authority: Authority) -> None:
    """Without it nothing is answered."""
    own = authority.sign("worker")
    async with tls_end(server.port, authority.sign("server"), clients=authority.certificate) as port:
        ours = f"ssl_ca_certs={authority.certificate}"
        await round_trip(store(port, skips, ours, f"ssl_certfile={own.certificate}", f"ssl_keyfile={own.key}"))
        nameless = store(port, skips, ours)
        with pytest.raises(StoreError):
            await nameless.read(NOW)


@pytest.mark.parametrize("why", ["another authority", "no authority", "another name"])
async def test_a_server_that_is_not_trusted_is_told_nothing(
    why: str, server: Server, skips: Skips, authority: Authority, tmp_path: Path
) -> None:
    """Whose certificate is signed by somebody else, or is for another place."""
    signer = Authority(tmp_path) if why == "another authority" else authority
    own = signer.sign("elsewhere", "DNS:elsewhere.example") if why == "another name" else signer.sign("server")
    async with tls_end(server.port, own) as port:
        opened = store(port, skips, *([] if why == "no authority" else [f"ssl_ca_certs={authority.certificate}"]))
        with pytest.raises(StoreError, match="certificate verify failed"):
            await opened.write([window()], [cost()], NOW)
    assert keys(server) == []


async def test_a_server_without_tls_is_an_error(server: Server, skips: Skips, authority: Authority) -> None:
    """Nothing is told to it in plain text instead."""
    with pytest.raises(StoreError):
        await store(server.port, skips, f"ssl_ca_certs={authority.certificate}", told=()).write([window()], [cost()], NOW)
    assert keys(server) == []


@asynccontextmanager
async def silence() -> AsyncIterator[int]:
    """Takes connections and says nothing."""
    over = asyncio.Event()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        over.set()
        listening.close()


async def test_a_handshake_that_is_never_answered_is_given_up(skips: Skips, authority: Authority) -> None:
    """Within the time that a worker has for a connection."""
    async with silence() as port:
        opened = store(port, skips, f"ssl_ca_certs={authority.certificate}", told=())
        with pytest.raises(StoreError):
            await asyncio.wait_for(opened.read(NOW), 100 * PATIENCE_S)


def test_a_missing_file_is_an_error_of_the_store(skips: Skips, tmp_path: Path) -> None:
    """Not of the worker."""
    with pytest.raises(StoreError):
        asyncio.run(store(1, skips, f"ssl_ca_certs={tmp_path}/none.pem").read(NOW))
