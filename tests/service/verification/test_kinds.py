"""Every kind of trouble in tests/models gets the outcome that its file expects, and what is replayed answers as a fresh model does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cachepolicy.buckets import Bucket
from service.backends.base import Padding
from service.errors import CaptureRefused
from service.recorder import Verdict
from tests.service.verification.benches import MODELS, Bench, file_module, value

ADMITTED = {"padded": Verdict(), "repeated": Verdict(Padding.REPEAT), "exact": Verdict(exact_only=True)}
FILES = sorted(MODELS.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_outcome_is_the_expected_one_and_replies_are_right(bench: Bench, path: Path) -> None:
    """Admitted with the padding that is safe, or refused with the right reason; never a wrong reply."""
    file = file_module(path)
    model = bench.of_file(path)
    bucket = Bucket.of(batch=8)
    if file.EXPECT not in ADMITTED:
        with pytest.raises(CaptureRefused) as refused:
            bench.admit(model, bucket)
        assert refused.value.reason in file.EXPECT.split("|"), refused.value
        return
    recording, verdict = bench.admit(model, bucket)
    assert verdict == ADMITTED[file.EXPECT]
    fresh = file.make_model()
    for seed in (100, 101):
        for batch in [8] if verdict.exact_only else [1, 3, 4, 7, 8]:
            inputs = file.example_inputs(batch, seed)
            with torch.no_grad():
                expected = fresh(**{name: tensor.clone() for name, tensor in inputs.items()})
            reply = bench.replay(recording, inputs, {"batch": batch}, verdict.padding)
            tensors = expected.values() if isinstance(expected, dict) else [expected]
            for name, tensor in zip(reply, tensors, strict=True):
                rtol, atol = getattr(file, "RTOL", 1e-5), getattr(file, "ATOL", 1e-5)
                torch.testing.assert_close(value(reply[name]), tensor, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("path", [path for path in FILES if file_module(path).EXPECT in ADMITTED], ids=lambda path: path.stem)
def test_rows_are_merged_only_where_they_are_independent(bench: Bench, path: Path) -> None:
    """What `rows: auto` becomes after the proof."""
    model = bench.of_file(path)
    assert bench.in_capturer(lambda: bench.proof.rows_independent(model, (), bench.lane)) is file_module(path).ROWS_INDEPENDENT


MEETING = """
writes_by_key joins_by_key drops_repeated_rows counts_occurrences counts_alike looks_up_in_batch shared_cell rank_in_batch
""".split()


@pytest.mark.parametrize("name", MEETING)
def test_rows_that_meet_by_their_values_are_answered_right(bench: Bench, name: str) -> None:
    """Values that coincide with one another and with what padding holds, which made up ones never do."""
    path = MODELS / f"{name}.py"
    file = file_module(path)
    recording, verdict = bench.admit(bench.of_file(path), Bucket.of(batch=8))
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        for batch in [8] if verdict.exact_only else [1, 3, 7, 8]:
            inputs = file.example_inputs(batch, seed)
            for tensor in inputs.values():
                few = torch.tensor([0, 100, tensor.flatten()[0].item()]).to(tensor.dtype)
                chosen = few[torch.randint(0, 3, tensor.shape, generator=g)]
                tensor.copy_(torch.where(torch.rand(tensor.shape, generator=g) < 0.8, chosen, tensor))
            with torch.no_grad():
                expected = file.make_model()(**inputs)
            (reply,) = bench.replay(recording, inputs, {"batch": batch}, verdict.padding).values()
            torch.testing.assert_close(value(reply), expected)


@pytest.mark.parametrize("name", ["running_state", "remembers", "global_counter"])
def test_the_instance_that_serves_is_not_run_by_a_refused_judgement(bench: Bench, name: str) -> None:
    """A model that changes itself gives its first answer first."""
    path = MODELS / f"{name}.py"
    model = bench.of_file(path)
    before = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    with pytest.raises(CaptureRefused):
        bench.admit(model, Bucket.of(batch=4))
    inputs = file_module(path).example_inputs(3, 9)
    with torch.no_grad():
        first = model.module(**inputs)
        never_judged = file_module(path).make_model()(**inputs)
    assert torch.equal(first, never_judged)
    assert all(torch.equal(tensor, model.module.state_dict()[name]) for name, tensor in before.items() if name != "level")
