"""One thread that owns the order of work on the device for as long as the worker lives (docs/design.md, 2)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from queue import SimpleQueue
from time import monotonic
from typing import Protocol, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class Lane(Protocol):
    """What long background work needs of it."""

    @property
    def ran(self) -> int:
        """Items begun so far: by it one sees whether others use the lane, too."""
        ...

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue `work`; its result or exception comes in the future."""
        ...

    def alone(self, work: Callable[[], T]) -> T:
        """Do something short while no item runs: a replay has its graph in use within one item only. Not to be called from the lane."""
        ...

    def barrier(self) -> None:
        """Wait until everything queued before has run. Not to be called from the lane itself."""
        ...


class LaneThread:
    """Runs work items one after the other in a thread of its own, inside `context` (stream current, gradients off)."""

    def __init__(self, context: Callable[[], AbstractContextManager[None]], name: str) -> None:
        self._items: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._opened: Future[None] = Future()
        self._closed = threading.Event()
        self.busy_s = 0.0  # seconds spent on items so far
        self.ran = 0
        self._thread = threading.Thread(target=self._run, args=(context,), name=name, daemon=True)
        self._thread.start()
        self._opened.result()

    def post(self, item: Callable[[], None]) -> None:
        """Queue an item that reports its own outcome and never raises."""
        self._items.put(item)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """See Lane."""
        future: Future[T] = Future()

        def item() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - handed to the waiter whatever it is
                future.set_exception(error)

        self._items.put(item)
        return future

    def alone(self, work: Callable[[], T]) -> T:
        """See Lane."""
        return work() if self._closed.is_set() else self.submit(work).result()

    def barrier(self) -> None:
        """See Lane."""
        self.alone(lambda: None)

    def close(self) -> None:
        """Run what is queued, then end the thread."""
        if not self._closed.is_set():
            self._closed.set()
            self._items.put(None)
            self._thread.join()

    def _run(self, context: Callable[[], AbstractContextManager[None]]) -> None:
        try:
            manager = context()
            manager.__enter__()
        except BaseException as error:  # noqa: BLE001 - the opener of the lane has to see it
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        while (item := self._items.get()) is not None:
            self.ran += 1
            started = monotonic()
            try:
                item()
            except BaseException:
                log.exception("the lane goes on after an error")
            self.busy_s += monotonic() - started
        manager.__exit__(None, None, None)


class BackgroundLane:
    """The lane of somebody whose work takes many items, for minutes where requests keep the lane busy.

    Before each of them `between` is called: time for what can't wait so long.
    """

    def __init__(self, lane: LaneThread) -> None:
        self.between: Callable[[], None] = lambda: None
        self._lane = lane

    @property
    def ran(self) -> int:
        """See Lane."""
        return self._lane.ran

    @property
    def busy_s(self) -> float:
        """Seconds that the lane spent on items so far, whoever's."""
        return self._lane.busy_s

    def make_way(self) -> None:
        """Do what can't wait, where other things than items of the lane take long, too. Raises what `between` raises."""
        self.between()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """See Lane. Raises what `between` raises."""
        self.make_way()
        return self._lane.submit(work)

    def alone(self, work: Callable[[], T]) -> T:
        """See Lane."""
        return self._lane.alone(work)

    def barrier(self) -> None:
        """See Lane."""
        self._lane.barrier()
