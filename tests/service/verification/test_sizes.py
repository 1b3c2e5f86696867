"""Sizes below a bucket that a proof tries: few, spread, and those that the model's code names."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from cachepolicy.buckets import Bucket
from service.models.spec import AxisSpec, InputSpec, OutputSpec
from service.recorder import Verdict
from service.tensors import Datatype
from service.verification.code_constants import named_integers
from service.verification.sizes import sizes_below
from tests.modules import one_size
from tests.service.verification.benches import Bench

X = InputSpec("x", Datatype.FP32, ("batch", 4))
Y = OutputSpec("output", Datatype.FP32, ("batch", 4))
AXES = (AxisSpec("batch", 64, (64,)),)
BRANCHES: list[Callable[[], nn.Module]] = [
    one_size.Literal,
    one_size.Between,
    one_size.Member,
    one_size.Remainder,
    one_size.Attribute,
    one_size.Global,
    one_size.Helper,
    one_size.Inner,
    one_size.Default,
    one_size.Closed,
]


@pytest.mark.parametrize("size", [1, 2, 3, 16, 17, 64, 100, 512])
def test_sizes_to_try_are_few_and_have_both_ends(size: int) -> None:
    """All of them where there are at most sixteen, and never more than 48, whatever the code names."""
    for named, most in ((range(0), 24), (range(4000), 48)):
        sizes = sizes_below(size, named)
        assert len(sizes) == len(set(sizes)) <= most
        assert set(sizes) <= set(range(1, size))
        assert set(sizes) >= {1, size - 1} - {0, size}
        if size <= 16:
            assert set(sizes) == set(range(1, size))


def test_what_the_code_names_is_tried_with_its_neighbours() -> None:
    """A comparison may be with the one or with the other."""
    assert {39, 40, 41} <= set(sizes_below(64, {40, 3000}))
    assert 63 in sizes_below(64, {64})


@pytest.mark.parametrize("make", BRANCHES, ids=lambda make: getattr(make, "__name__", ""))
def test_a_branch_at_one_size_is_found_wherever_that_size_stands(bench: Bench, make: Callable[[], nn.Module]) -> None:
    """Its graph is never padded: from another size it would answer wrongly there."""
    assert one_size.SIZE not in sizes_below(64)
    assert {39, 40, 41} & named_integers(make())
    model = bench.of_module(make, inputs=(X,), outputs=(Y,), axes=AXES)
    _, verdict = bench.admit(model, Bucket.of(batch=64))
    assert verdict.exact_only
    assert "batch=40 padded to batch=64" in verdict.detail


def test_the_source_of_a_scripted_module_is_read() -> None:
    """It has no Python code to look at."""
    scripted = torch.jit.script(one_size.Scripted())
    assert one_size.SIZE in named_integers(scripted)


def test_what_can_not_be_read_hides_nothing_else() -> None:
    """An object that raises whatever it is asked."""
    assert one_size.SIZE in named_integers(one_size.Guarded())


def test_a_size_that_is_named_for_nothing_does_no_harm(bench: Bench) -> None:
    """More is tried, and all is well."""
    assert one_size.SIZE in named_integers(one_size.Harmless())
    model = bench.of_module(one_size.Harmless, inputs=(X,), outputs=(Y,), axes=AXES)
    assert bench.admit(model, Bucket.of(batch=64))[1] == Verdict()
