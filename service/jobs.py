"""The capturer's thread and its queue: what is short and can't wait goes first, captures that somebody asked for before the policy's."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from threading import Condition, Event, Thread
from typing import TypeVar

from service.errors import Conflict, DeviceLost

log = logging.getLogger(__name__)

T = TypeVar("T")
Job = Callable[[], object]

SUPERSEDED = "the model was unloaded or reloaded meanwhile, or its graph evicted"
_TICK_S = 0.25  # how often a thread without a job looks around


class Turn(IntEnum):
    """Lower ones go first; within one, in order of arrival."""

    AT_ONCE = 0  # short; run between the steps of a capture as well
    ASKED = 1
    POLICY = 2


class Jobs:
    """Filled by any thread, emptied by one."""

    def __init__(self) -> None:
        self._waiting: dict[Turn, deque[Job | None]] = {turn: deque() for turn in Turn}
        self._changed = Condition()

    def put(self, job: Job | None, turn: Turn) -> None:
        """Queue a job; None tells the thread to end."""
        with self._changed:
            self._waiting[turn].append(job)
            self._changed.notify()

    def next(self, default: Job, timeout_s: float) -> Job | None:
        """The job whose turn it is; the default where none comes within the time."""
        with self._changed:
            self._changed.wait_for(lambda: any(self._waiting.values()), timeout_s)
            return next((waiting.popleft() for waiting in self._waiting.values() if waiting), default)

    def wait(self) -> None:
        """Until there is a job."""
        with self._changed:
            self._changed.wait_for(lambda: any(self._waiting.values()))

    def any(self, turn: Turn) -> bool:
        """Whether a job waits for this turn."""
        return bool(self._waiting[turn])

    def pop(self, turn: Turn) -> Job | None:
        """A job of this turn, if one waits."""
        with self._changed:
            return self._waiting[turn].popleft() if self._waiting[turn] else None


class JobThread:
    """Does one job after the other; between the steps of a long one, what can't wait."""

    def __init__(self, context: Callable[[], AbstractContextManager[None]]) -> None:
        """`context` is entered by the thread before its first job; `look_around` is done where no job comes for a while."""
        self.on_device_lost: Callable[[DeviceLost], None] = lambda _: None
        self.look_around: Job = lambda: None
        self._jobs = Jobs()
        self._wanted: Callable[[], bool] = lambda: True  # the job in hand
        self._closing = Event()
        self._thread = Thread(target=self._run, args=(context,), name="capturer", daemon=True)
        self._thread.start()

    def closing(self) -> bool:
        """What is queued is not begun any more."""
        return self._closing.is_set()

    def put(self, job: Job, turn: Turn) -> None:
        """Queue a job that nobody waits for."""
        self._jobs.put(job, turn)

    def submit(self, work: Callable[[], T], turn: Turn = Turn.AT_ONCE) -> Future[T]:
        """Queue `work`; its result or exception comes in the future, which is cancelled where the thread ends before."""
        return self._submit(work, turn, self.closing)

    def waits(self, turn: Turn) -> bool:
        """Whether a job waits for this turn."""
        return self._jobs.any(turn)

    @contextmanager
    def so_long_as(self, wanted: Callable[[], bool]) -> Iterator[None]:
        """What is done inside ends with Conflict as soon as it has lost its purpose."""
        self._wanted = wanted
        try:
            yield
        finally:
            self._wanted = lambda: True

    def make_way(self) -> None:
        """Between two steps of a long job: do what can't wait for its end. Raises Conflict where it has lost its purpose."""
        while (job := self._jobs.pop(Turn.AT_ONCE)) is not None:
            self._do(job)
        if not self._wanted():
            raise Conflict(SUPERSEDED)

    def close(self, last: Job) -> None:
        """Give up what is queued, do `last`, and end the thread."""
        self._closing.set()
        self._submit(last, Turn.AT_ONCE, lambda: False).result()
        self._jobs.put(None, Turn.POLICY)
        self._thread.join()

    def _submit(self, work: Callable[[], T], turn: Turn, void: Callable[[], bool]) -> Future[T]:
        future: Future[T] = Future()

        def job() -> None:
            if void():
                future.cancel()
                return
            try:
                future.set_result(work())
            except BaseException as error:  # handed to the waiter whatever it is
                future.set_exception(error)
                if isinstance(error, DeviceLost):
                    raise

        self._jobs.put(job, turn)
        return future

    def _run(self, context: Callable[[], AbstractContextManager[None]]) -> None:
        self._jobs.wait()
        with context():
            while (job := self._jobs.next(self.look_around, _TICK_S)) is not None:
                self._do(job)

    def _do(self, job: Job) -> None:
        try:
            job()
        except DeviceLost as lost:
            self.on_device_lost(lost)
        except BaseException:
            log.exception("the capturer goes on after an error")
