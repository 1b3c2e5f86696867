"""Captures and evictions beside clients, on the CPU backend."""

import pytest

from tests.contracts.churn import *  # noqa: F403


@pytest.fixture
def device() -> str:
    """Where the contract runs."""
    return "cpu"
