"""The budget contract on the CPU."""

import pytest

from tests.contracts.budget import *  # noqa: F403


@pytest.fixture
def device() -> str:
    """Where the contract runs."""
    return "cpu"


@pytest.fixture
def tight() -> int:
    """Bytes for a few of the contract's graphs: one of 16 rows takes 8 KiB."""
    return 20 << 10
