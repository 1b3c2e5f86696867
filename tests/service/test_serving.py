"""The serving contract on the CPU backend."""

import pytest

from tests.contracts.serving import *  # noqa: F403


@pytest.fixture
def device() -> str:
    """Where the contract runs."""
    return "cpu"
