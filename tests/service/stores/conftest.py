"""Each store with something behind it, and things to put in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.stores.base import ProfileStore
from service.stores.opening import open_store
from tests.valkey import Server, valkey


class Skips:
    """Counts records that were skipped."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Server]:
    """One server for all tests that do no harm to it."""
    with valkey() as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Server:
    """An empty server."""
    with shared_server.client() as client:
        client.flushall()
    return shared_server


@pytest.fixture
def skips() -> Skips:
    """How many records were skipped."""
    return Skips()


@pytest.fixture(params=["redis", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, skips: Skips) -> Callable[[], ProfileStore]:
    """Opens the same store again and again, as several workers do."""
    setting = request.getfixturevalue("server").url if request.param == "redis" else "sqlite"

    def open_one() -> ProfileStore:
        store = open_store(setting, tmp_path, skips)
        assert store is not None
        return store

    return open_one
