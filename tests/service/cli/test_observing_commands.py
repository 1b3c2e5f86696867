"""`top` and `explain --request` beside a running worker."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from tests.process import Addresses
from tests.service.cli.conftest import Terminal


def test_explain_request_tells_of_a_recent_one(terminal: Terminal) -> None:
    """By the id that the client chose: path, reason and hint."""
    served = terminal.infer("infer", "mlp", "--random", "batch=3", "--id", "my-request", "--json").json
    told = terminal.admin("explain", "--request", "my-request", "--json").json
    assert [(one["model"], one["shape"], one["outcome"], one["reason"]) for one in told] == [
        ("mlp", {"batch": 3}, served["path"], served["reason"])
    ]
    shown = terminal.admin("explain", "--request", "my-request").out
    assert "mlp:1 batch=3: served by" in shown
    assert "executed" in shown


def test_explain_request_of_an_unknown_id_is_one_line(terminal: Terminal) -> None:
    """Exit code 1, and how many requests are remembered."""
    answer = terminal.admin("explain", "--request", "nobody")
    assert answer.code == 1
    assert answer.err.startswith("graphcache: no decision on request 'nobody' is kept")


def test_explain_wants_a_shape_or_a_request(terminal: Terminal) -> None:
    """Neither, or both, is wrong usage."""
    for words in (("explain",), ("explain", "mlp", "--request", "a")):
        answer = terminal.admin(*words)
        assert (answer.code, "either MODEL AXIS=SIZE... or --request ID" in answer.err) == (2, True)


def test_top_prints_one_look_as_json(terminal: Terminal) -> None:
    """Everything that scripts may want."""
    terminal.infer("infer", "mlp", "--random", "batch=3")
    told = terminal.admin("top", "--json").json
    mlp = next(model for model in told["models"] if model["model"] == "mlp")
    assert sum(mlp["outcomes"].values()) >= 1
    assert told["budget_bytes"] == 512 << 20
    assert {"busy_ratio", "saturation", "backlog_s", "graphs", "modes"} <= told.keys()


def test_top_in_a_pipe_is_a_page_for_each_look(terminal: Terminal) -> None:
    """No control sequence; rates from the second look on."""
    out = terminal.admin("top", "--count", "2", "--every", "10ms").out
    assert out.count("device busy") == 2
    assert "eager because" in out
    assert "\x1b" not in out


def test_top_on_a_dumb_terminal_does_not_move_the_cursor(worker: Addresses) -> None:
    """A real pseudo-terminal with TERM=dumb gets plain lines."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "service", "top", "--count", "1", "--admin-address", worker.admin]
    with subprocess.Popen(command, stdout=follower, stderr=follower, env={**os.environ, "TERM": "dumb"}) as process:
        os.close(follower)
        out = b""
        try:
            while piece := os.read(leader, 4096):
                out += piece
        except OSError:  # the terminal's other end is closed
            pass
        finally:
            os.close(leader)
        assert process.wait() == 0
    assert b"device busy" in out
    assert b"\x1b" not in out


def test_top_without_a_worker_is_one_line(alone: Terminal) -> None:
    """Nobody listens there."""
    answer = alone.run("top", "--admin-address", "127.0.0.1:1")
    assert (answer.code, answer.err) == (1, "graphcache: no worker answers at 127.0.0.1:1\n")
