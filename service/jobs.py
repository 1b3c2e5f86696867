"""The capturer's queue: what is short and can't wait goes first, captures that somebody asked for come before those of the policy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from threading import Condition

Job = Callable[[], object]


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

    def any(self, turn: Turn) -> bool:
        """Whether a job waits for this turn."""
        return bool(self._waiting[turn])

    def pop(self, turn: Turn) -> Job | None:
        """A job of this turn, if one waits."""
        with self._changed:
            return self._waiting[turn].popleft() if self._waiting[turn] else None
