"""One recording at a time on a host: a lock on a file that the workers of a host share, waited for a moment and never relied on.

The lock is the kernel's (flock) and goes with its holder, however that ends: there is nothing to clean up after a worker that was killed.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

log = logging.getLogger(__name__)

PATIENCE_S = 0.5  # several recordings of usual steps; requests never wait here, only the capturer's thread does
_POLL_S = 0.005


class HostLock:
    """Used by one thread of a process."""

    def __init__(self, path: Path, *, between: Callable[[], None], unlocked: Callable[[], None], patience_s: float = PATIENCE_S) -> None:
        """`between` is called while the lock is waited for, and may raise; `unlocked` whenever it is done without."""
        self._path = path
        self._between = between
        self._unlocked = unlocked
        self._patience_s = patience_s
        self._patient = True  # once it was waited for in vain nobody waits again before it was free: one that hangs costs one wait
        self._told: set[str] = set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Do what is inside while no other process does, if that can be had within `patience_s`, and otherwise all the same."""
        file = self._open()
        if file is None:
            yield
            return
        try:
            self._await(file)
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing alone would leave it with children that were forked meanwhile
            os.close(file)

    def _open(self) -> int | None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._go_without(str(error))
            return None

    def _await(self, file: int) -> None:
        give_up = monotonic() + (self._patience_s if self._patient else 0.0)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if monotonic() >= give_up:
                    self._patient = False
                    self._go_without(f"another worker of this host has held it for more than {self._patience_s} s", logging.INFO)
                    return
            except OSError as error:  # a file system without locks
                self._go_without(f"{self._path}: {error.strerror or error}")
                return
            else:
                self._patient = True
                return
            self._between()
            sleep(_POLL_S)

    def _go_without(self, why: str, level: int = logging.WARNING) -> None:
        self._unlocked()
        if why not in self._told:
            self._told.add(why)
            log.log(level, "captures go on without the host's lock: %s", why)
