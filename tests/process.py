"""A worker in a process of its own, as a user starts it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

FREE_PORTS = tuple(
    part for key in ("listen", "admin_listen", "metrics_listen", "probe_listen") for part in ("--set", f"worker.{key}=127.0.0.1:0")
)


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
    command = [sys.executable, "-m", "service", "serve", *arguments, *FREE_PORTS]
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
