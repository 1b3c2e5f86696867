"""No random module is replayed to another answer than eager's; `GRAPHCACHE_MODULES` says how many are tried."""

from __future__ import annotations

import os
from functools import partial

import numpy as np
import pytest
import torch

from cachepolicy.buckets import Bucket
from service.capturer import Verdict
from service.errors import CaptureRefused
from service.models.spec import AxisSpec
from service.verification.comparing import relative_distance
from tests.service.verification.conftest import Bench, value
from tests.service.verification.random_modules import FORMS, INPUTS, RandomStep, example

MODULES = int(os.environ.get("GRAPHCACHE_MODULES", "200"))
TOGETHER = 25


@pytest.mark.parametrize("first", range(0, MODULES, TOGETHER))
def test_a_replayed_reply_never_differs_from_eager(bench: Bench, first: int) -> None:
    """Admitted modules answer as a fresh instance does at every size they serve; safe ones must be admitted."""
    for seed in range(first, min(first + TOGETHER, MODULES)):
        _check(bench, seed)


def _check(bench: Bench, seed: int) -> None:
    fresh = RandomStep(seed).eval()
    size = (4, 8, 7)[seed % 3]
    axes = (AxisSpec("batch", 8, (size, 8) if size < 8 else (8,)),)
    model = bench.of_module(partial(RandomStep, seed), inputs=INPUTS, outputs=FORMS[fresh.form], axes=axes)
    story = f"module {seed}: {', '.join(fresh.names)}; {fresh.form}; bucket {size}"
    try:
        recording, verdict = bench.admit(model, Bucket.of(batch=size))
    except CaptureRefused as refusal:
        if fresh.safe:
            raise AssertionError(f"{story}: refused") from refusal
        return
    if fresh.safe:
        assert verdict == Verdict(), story
    rounding = 5e-2 if "in_half" in fresh.names else 1e-4
    for batch in [size] if verdict.exact_only else [size, *range(1, size)]:
        inputs = example(batch, 1000 * seed + batch)
        with torch.no_grad():
            expected = fresh(**{name: tensor.clone() for name, tensor in inputs.items()})
        reply = bench.replay(recording, inputs, {"batch": batch}, verdict.padding)
        for name, tensor in expected.items():
            got = value(reply[name])
            assert got.shape == tensor.shape, f"{story}: {name} at {batch}"
            if not tensor.is_floating_point():
                assert (got == tensor).all(), f"{story}: {name} at {batch}"
                continue
            finite = tensor[torch.isfinite(tensor)].abs()
            scale = np.asarray(finite.max() if finite.numel() else 0.0)
            distance = relative_distance(tensor.numpy(), got.numpy(), scale)
            assert distance < rounding, f"{story}: {name} at {batch} is off by {distance:.2g}"
