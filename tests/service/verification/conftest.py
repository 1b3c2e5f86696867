from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.verification.benches import Bench, bench_on


@pytest.fixture(scope="session")
def bench() -> Iterator[Bench]:
    with bench_on("cpu") as bench:
        yield bench
