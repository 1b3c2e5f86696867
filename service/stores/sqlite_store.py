"""The store of one host: an SQLite file in the worker's folder, shared by the worker processes there.

A file that is no database any more is set aside, and a new one begun.
"""

from __future__ import annotations

import asyncio
import fcntl
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import time
from typing import TypeVar

from service.stores.base import COSTS_KEPT_S, KEPT_S, MOST_PROGRAMS, MOST_WINDOWS, SCHEMA, Contents, CostRecord, StoreError, Window
from service.stores.records import Skipped, cost_field, cost_value, read_cost, read_window, window_fields

T = TypeVar("T")

_BUSY_S = 0.1  # as long as another process may keep us waiting
_TABLES = """
CREATE TABLE IF NOT EXISTS traffic (start INTEGER, worker TEXT, field TEXT, value TEXT, PRIMARY KEY (start, worker, field)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS costs (program TEXT, field TEXT, value TEXT, at REAL, PRIMARY KEY (program, field)) WITHOUT ROWID;
"""


class SqliteStore:
    """A ProfileStore. All work happens in one thread of its own."""

    def __init__(self, folder: Path, skipped: Skipped) -> None:
        self.path = folder / f"profile.{SCHEMA}.sqlite3"
        self._skipped = skipped
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="profile-store")
        self._open: tuple[sqlite3.Connection, int] | None = None  # and the file's inode

    async def read(self, now: float) -> Contents:
        """See ProfileStore."""
        return await self._do(lambda connection: self._read(connection, now))

    async def write(self, windows: Sequence[Window], costs: Sequence[CostRecord], now: float) -> None:
        """See ProfileStore."""
        await self._do(lambda connection: self._write(connection, windows, costs, now))

    async def close(self) -> None:
        """See ProfileStore."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    # -- in the store's thread

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._try, work)

    def _try(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return work(self._connection())
        except sqlite3.OperationalError as error:  # locked, full, not writable: the file itself may be sound
            self._close()
            raise StoreError(f"{self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            self._set_aside()
            raise StoreError(f"{self.path}: {error}; the file was set aside") from error
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror or error}") from error

    def _connection(self) -> sqlite3.Connection:
        if self._open is not None:
            connection, inode = self._open
            if _inode(self.path) == inode:
                return connection
            self._close()  # set aside by another process, or deleted
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        connection = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(_TABLES)
        except BaseException:
            connection.close()
            raise
        self._open = connection, _inode(self.path)
        return connection

    def _read(self, connection: sqlite3.Connection, now: float) -> Contents:
        with closing(connection.cursor()) as cursor:
            newest = "SELECT DISTINCT start, worker FROM traffic WHERE start > ? AND start <= ? ORDER BY start DESC LIMIT ?"
            windows = []
            for start, worker in cursor.execute(newest, (now - KEPT_S, now + 1, MOST_WINDOWS)).fetchall():
                rows = cursor.execute("SELECT field, value FROM traffic WHERE start = ? AND worker = ?", (start, worker))
                windows.append(read_window(start, str(worker), dict(map(_texts, rows)), self._skipped))
            rows = cursor.execute("SELECT program, field, value FROM costs ORDER BY at DESC LIMIT ?", (MOST_PROGRAMS * 64,))
            costs = [read_cost(str(program), *_texts(row), self._skipped) for program, *row in rows]
        return Contents([window for window in windows if window is not None], [record for record in costs if record is not None])

    def _write(self, connection: sqlite3.Connection, windows: Sequence[Window], costs: Sequence[CostRecord], now: float) -> None:
        with _transaction(connection):
            for window in windows:
                connection.execute("DELETE FROM traffic WHERE start = ? AND worker = ?", (window.start, window.worker))
                rows = [(window.start, window.worker, field, value) for field, value in window_fields(window).items()]
                connection.executemany("INSERT INTO traffic VALUES (?, ?, ?, ?)", rows)
            connection.executemany(
                "INSERT OR REPLACE INTO costs VALUES (?, ?, ?, ?)",
                [(record.program, cost_field(record), cost_value(record, now), now) for record in costs],
            )
            connection.execute("DELETE FROM traffic WHERE start <= ?", (now - KEPT_S,))
            connection.execute("DELETE FROM costs WHERE at <= ?", (now - COSTS_KEPT_S,))

    def _close(self) -> None:
        if self._open is not None:
            with suppress(sqlite3.Error):
                self._open[0].close()
            self._open = None

    def _set_aside(self) -> None:
        """Move the broken file away, once: several processes may find it broken."""
        self._close()
        with (self.path.parent / "profile.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _sound(self.path):
                return
            for suffix in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    Path(f"{self.path}{suffix}").replace(f"{self.path}.broken-{int(time())}{suffix}")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _sound(path: Path) -> bool:
    """Whether the file is a database; one that is missing or locked is not broken."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=_BUSY_S)) as connection:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.OperationalError:
        return True
    except sqlite3.DatabaseError:
        return False


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _texts(row: Sequence[object]) -> tuple[str, str]:
    return str(row[0]), str(row[1])
