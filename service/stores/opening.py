"""Opens the store that the configuration names."""

from __future__ import annotations

from pathlib import Path

from service.stores.base import ProfileStore
from service.stores.records import Skipped

_PEOPLE_WAIT_S = 5.0


def open_store(setting: str, state_dir: Path, skipped: Skipped, *, at_hand: bool = False) -> ProfileStore | None:
    """A store by `profile_store`, None where it is `none`; nothing is connected yet. `skipped` is called for each bad record.

    `at_hand`: somebody waits for this very store and nothing else, so that it may take its time.

    Raises ConfigError for a URL that can't be one.
    """
    if setting == "none":
        return None
    if setting == "sqlite":
        from service.stores.sqlite_store import SqliteStore  # noqa: PLC0415 - only what is used is imported

        return SqliteStore(state_dir, skipped)
    from service.stores.redis_store import RedisStore  # noqa: PLC0415 - redis takes a tenth of a second

    return RedisStore(setting, skipped, _PEOPLE_WAIT_S) if at_hand else RedisStore(setting, skipped)
