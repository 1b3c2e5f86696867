"""What tests do to recordings of a running worker: make their replays slower, run out of memory, watch the budget."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import sleep
from typing import Any

from cachepolicy.buckets import Bucket
from service.backends.base import Batch, Outputs, Padding, Recording
from service.errors import OutOfDeviceMemory
from service.serving import Node


@dataclass(slots=True)
class Dial:
    """How many times each replay is run."""

    times: int = 1


class Slowed:
    """A recording whose replays are run several times over."""

    def __init__(self, recording: Recording, dial: Dial) -> None:
        self._recording = recording
        self._dial = dial

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recording, name)

    def replay(self, batch: Batch, padding: Padding = Padding.VALUE) -> list[Outputs]:
        """As often as the dial says."""
        for _ in range(self._dial.times - 1):
            self._recording.replay(batch, padding)
        return self._recording.replay(batch, padding)


def slowed(node: Node) -> Dial:
    """Every graph recorded from now on obeys the dial."""
    dial, record = Dial(), node.backend.record

    def wrapped(*args: Any, **options: Any) -> Any:
        return Slowed(record(*args, **options), dial)

    node.backend.record = wrapped  # type: ignore[method-assign]
    return dial


def out_of_memory_above(node: Node, volume: int) -> None:
    """Recording a larger bucket fails for want of memory."""
    record = node.backend.record

    def wrapped(model: Any, variant: Any, bucket: Bucket, **options: Any) -> Any:
        if bucket.volume > volume:
            raise OutOfDeviceMemory("CUDA out of memory. Tried to allocate 2.00 GiB")
        return record(model, variant, bucket, **options)

    node.backend.record = wrapped  # type: ignore[method-assign]


@contextmanager
def watched_budget(node: Node, pause_s: float = 0.0005) -> Iterator[list[int]]:
    """Looks at the cache all the time; the list has what was used at moments when that was over the budget."""
    over: list[int] = []
    done = threading.Event()

    def look() -> None:
        cache = node.capturer.cache
        while not done.is_set():
            used = cache.used
            if used > cache.budget:
                over.append(used)
            sleep(pause_s)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield over
    finally:
        done.set()
        thread.join()
