"""The first thing a newcomer does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process import FREE_PORTS

ROOT = Path(__file__).parent.parent.parent
ALONE = (*FREE_PORTS, "--set", "profile_store=none")  # what earlier runs left is not known
DEMO = [sys.executable, "-m", "service", "demo", *ALONE]

pytestmark = pytest.mark.e2e


def test_make_run_with_seconds_serves_traffic_and_ends_by_itself() -> None:
    """A worker comes up, most requests are answered, the summary names paths, and the exit code is 0."""
    done = subprocess.run(["make", "run", "SECONDS=6", f"ARGS={' '.join(ALONE)}"], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "listening inference=127.0.0.1:" in done.stdout
    for model in ("encoder", "decode", "mlp", "chain32"):
        assert f"{model}: " in done.stdout
    assert "replay" in done.stdout
    assert "errors 0" in done.stdout
    assert "first error" not in done.stdout


def test_interrupted_demo_stops_its_worker() -> None:
    """Ctrl-C ends traffic and worker in order: exit code 0, and the port is free again."""
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("listening "))
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait() == 0, rest
    host, port = line.split()[1].removeprefix("inference=").rsplit(":", 1)
    with socket.socket() as client:
        assert client.connect_ex((host, int(port))) != 0


def test_a_busy_port_is_named_and_ends_the_demo_with_exit_code_2() -> None:
    """The worker's own line is shown."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run([*DEMO, "--set", f"worker.admin_listen={address}"], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "worker.admin_listen" in done.stdout + done.stderr
    assert address in done.stdout + done.stderr
