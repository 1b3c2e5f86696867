"""The contract of backends on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends import Rig, opened
from tests.contracts.backends import *  # noqa: F403 - the tests themselves


@pytest.fixture(scope="module")
def opened_rig() -> Iterator[Rig]:
    """The CPU backend."""
    with opened("cpu") as rig:
        yield rig


@pytest.fixture
def rig(opened_rig: Rig) -> Iterator[Rig]:
    """What a test records is closed after it."""
    yield opened_rig
    opened_rig.close_all()
