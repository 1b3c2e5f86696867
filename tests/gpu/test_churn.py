"""Captures and evictions beside clients, on a CUDA device."""

import pytest

from tests.contracts.churn import *  # noqa: F403

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> str:
    """Where the contract runs."""
    return "cuda:0"
