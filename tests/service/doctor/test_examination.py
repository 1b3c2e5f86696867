"""The examination on the CPU."""

import pytest

from tests.contracts.doctor import *  # noqa: F403


@pytest.fixture
def device() -> str:
    """Where the contract runs."""
    return "cpu"
