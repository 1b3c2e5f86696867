"""Memory of this machine, or of the control group (a container's limit) that the process runs in."""

from __future__ import annotations

import os
from pathlib import Path

from service.backends.base import DeviceMemory

_GROUP = Path("/sys/fs/cgroup")


def host_memory() -> DeviceMemory:
    """Bytes that the process may have, and how many of them are free: those of caches included, which the kernel gives up."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = _available(total)
    limit, used = _number(_GROUP / "memory.max"), _number(_GROUP / "memory.current")
    if limit is not None and used is not None and limit < total:
        total, free = limit, min(free, limit - used)
    return DeviceMemory(max(0, free), total)


def _available(total: int) -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux, which alone tells
        return total
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), total)


def _number(path: Path) -> int | None:
    """None where there is no such limit: no file, or the word `max`."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
