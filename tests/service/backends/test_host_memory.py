"""What the process may have: the machine's memory, or a container's part of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.backends import host_memory as module
from service.backends.host_memory import host_memory


def test_without_a_limit_it_is_the_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of it is free; the word `max` is no limit."""
    monkeypatch.setattr(module, "_GROUP", tmp_path)
    bare = host_memory()
    assert 0 < bare.free <= bare.total
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("4096\n")
    assert host_memory().total == bare.total


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less what the container uses, and never below nothing."""
    monkeypatch.setattr(module, "_GROUP", tmp_path)
    (tmp_path / "memory.max").write_text("1048576\n")
    (tmp_path / "memory.current").write_text("262144\n")
    assert (host_memory().free, host_memory().total) == (786432, 1048576)
    (tmp_path / "memory.current").write_text("2097152\n")
    assert host_memory().free == 0
