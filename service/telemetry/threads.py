"""CPU time of the worker's threads, so that what a request costs the host can be told by part."""

from __future__ import annotations

import threading
from pathlib import Path
from time import process_time

# Threads that live as long as the worker: a part that ended would make its counter fall.
_PARTS = {"MainThread": "loop", "lane": "lane", "capturer": "capturer"}
OTHER = "other"


def cpu_seconds() -> dict[str, float]:
    """Seconds of CPU time so far: the event loop, the lane, the capturer, and everything else of the process."""
    found = {part: _seconds(thread) for thread in threading.enumerate() if (part := _PARTS.get(thread.name))}
    return found | {OTHER: max(0.0, process_time() - sum(found.values()))}


def _seconds(thread: threading.Thread) -> float:
    """From the scheduler, in nanoseconds; 0 where the system has no such file."""
    try:
        return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
