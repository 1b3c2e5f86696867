"""The proof on a GPU: every kind of trouble, and random modules, against fresh instances."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cachepolicy.buckets import Bucket
from service.errors import CaptureRefused
from tests.service.verification.benches import MODELS, Bench, bench_on, file_module, value
from tests.service.verification.random_modules import check

pytestmark = pytest.mark.gpu

MODULES = int(os.environ.get("GRAPHCACHE_MODULES", "300"))
TOGETHER = 50
ADMITTED = ("padded", "repeated", "exact")


@pytest.fixture(scope="module")
def gpu_bench() -> Iterator[Bench]:
    """The first GPU."""
    with bench_on("cuda:0") as bench:
        yield bench


FILES = [path for path in sorted(MODELS.glob("*.py")) if "CPU_ONLY" not in path.read_text()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_outcome_is_the_expected_one_and_replies_are_right(gpu_bench: Bench, path: Path) -> None:
    """What holds on a CPU holds here; only where the host is involved may the reason be another."""
    file = file_module(path)
    model = gpu_bench.of_file(path)
    try:
        recording, verdict = gpu_bench.admit(model, Bucket.of(batch=8))
    except CaptureRefused:
        assert file.EXPECT not in ADMITTED
        return
    assert file.EXPECT in ADMITTED
    fresh = file.make_model().to(gpu_bench.device)
    for batch in [8] if verdict.exact_only else [1, 3, 4, 7, 8]:
        inputs = file.example_inputs(batch, 100)
        with torch.no_grad():
            expected = fresh(**{name: tensor.to(gpu_bench.device) for name, tensor in inputs.items()})
        reply = gpu_bench.replay(recording, inputs, {"batch": batch}, verdict.padding)
        tensors = expected.values() if isinstance(expected, dict) else [expected]
        for name, tensor in zip(reply, tensors, strict=True):
            rtol, atol = getattr(file, "RTOL", 1e-4), getattr(file, "ATOL", 1e-4)
            torch.testing.assert_close(value(reply[name]), tensor.cpu(), rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("first", range(0, MODULES, TOGETHER))
def test_a_replayed_reply_never_differs_from_eager(gpu_bench: Bench, first: int) -> None:
    """Random modules, as on a CPU."""
    for seed in range(first, min(first + TOGETHER, MODULES)):
        check(gpu_bench, seed)
