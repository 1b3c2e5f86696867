"""No random module is replayed to another answer than eager's; `GRAPHCACHE_MODULES` says how many are tried."""

from __future__ import annotations

import os

import pytest

from tests.service.verification.benches import Bench
from tests.service.verification.random_modules import check

MODULES = int(os.environ.get("GRAPHCACHE_MODULES", "200"))
TOGETHER = 25


@pytest.mark.parametrize("first", range(0, MODULES, TOGETHER))
def test_a_replayed_reply_never_differs_from_eager(bench: Bench, first: int) -> None:
    """Admitted modules answer as a fresh instance does at every size they serve; safe ones must be admitted."""
    for seed in range(first, min(first + TOGETHER, MODULES)):
        check(bench, seed)
