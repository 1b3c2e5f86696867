"""A worker in a process of its own, as a user starts it."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

FREE_PORTS = tuple(
    part for key in ("listen", "admin_listen", "metrics_listen", "probe_listen") for part in ("--set", f"worker.{key}=127.0.0.1:0")
)
UNPREPARED = ("--set", "cache.prewarm.graphs=0")  # only what a test asks for, or traffic brings, is captured


def free_port() -> int:
    """For programs that can't tell which one they got. Not above 55,535: the node of a Valkey cluster listens 10,000 higher, too."""
    while True:
        port = random.randrange(20_000, 50_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a worker listens."""

    inference: str
    admin: str
    metrics: str
    probe: str


@contextmanager
def worker_process(arguments: Sequence[str] = ("--demo",)) -> Iterator[Addresses]:
    """`graphcache serve` with free ports; told to stop at the end, which it must do with exit code 0."""
    with (
        tempfile.TemporaryDirectory() as folder,
        _process(["--set", f"worker.state_dir={folder}", *FREE_PORTS, *UNPREPARED, *arguments]) as found,
    ):
        yield found


@contextmanager
def _process(arguments: Sequence[str]) -> Iterator[Addresses]:
    command = [sys.executable, "-m", "service", "serve", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith("listening "), f"instead of its addresses the worker said {line!r}"
            yield Addresses(**dict(part.split("=", 1) for part in line.split()[1:]))
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.read()
        assert process.wait() == 0
