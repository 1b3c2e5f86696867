from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from service.errors import NotYetProvable
from service.models.loaded import ExampleInputs, LoadedModel
from service.models.spec import AxisSpec, InputSpec, ModelSpec, OutputSpec
from service.tensors import Datatype, HostTensor
from service.verification.comparing import values
from service.verification.samples import Accepted, Kind, Sampler, crop

AXES = (AxisSpec("batch", 8, (8,)), AxisSpec("seq", 16, (16,)))
OUTPUTS = (OutputSpec("y", Datatype.FP32, ("batch",)),)
SHAPE = {"batch": 8, "seq": 16}


def model(*inputs: InputSpec, examples: ExampleInputs | None = None) -> LoadedModel:
    return LoadedModel(ModelSpec("m", "1", inputs, OUTPUTS, AXES), nn.Identity(), torch.device("cpu"), "p", "m:1@1", examples=examples)


TOKENS = InputSpec("tokens", Datatype.INT64, ("batch", "seq"))


def test_integers_without_any_source_are_not_invented() -> None:
    """On a GPU an invented index kills the process: the proof waits for traffic."""
    with pytest.raises(NotYetProvable, match="tokens"):
        Sampler(model(TOKENS))


def test_integers_stay_within_the_declared_range() -> None:
    """Both ends included."""
    spec = InputSpec("tokens", Datatype.INT32, ("batch", "seq"), range=(-3, 4))
    drawn = [Sampler(model(spec)).draw(SHAPE, kind, 1)["tokens"].array() for kind in Kind]
    assert {int(value) for array in drawn for value in array.flat} == set(range(-3, 5))


def test_accepted_requests_are_a_source_in_whole_rows() -> None:
    """Rows are repeated, cut along axes, never mixed within."""
    accepted = Accepted()
    request = HostTensor.of(Datatype.INT64, np.arange(40).reshape(2, 20))
    accepted.remember("m", {"tokens": request})
    drawn = Sampler(model(TOKENS), accepted.of("m")).draw(SHAPE, Kind.NATURAL, 0)["tokens"].array()
    assert drawn.shape == (8, 16)
    assert {tuple(row) for row in drawn} == {tuple(range(16)), tuple(range(20, 36))}


def test_accepted_requests_are_bounded() -> None:
    """A few per model, and none that is large."""
    accepted = Accepted(requests=2, request_bytes=64)
    for size in (4, 5, 6, 100):
        accepted.remember("m", {"x": HostTensor.of(Datatype.INT64, np.zeros(size, np.int64))})
    assert [kept["x"].shape for kept in accepted.of("m")] == [(5,), (6,)]


def test_floats_come_in_several_magnitudes_beside_whole_integer_rows() -> None:
    """Integers and bools stay with their row of the examples."""

    def examples(batch: int, seed: int) -> Mapping[str, Tensor]:
        return {"tokens": torch.full((batch, 16), seed), "x": torch.ones(batch)}

    sampler = Sampler(model(TOKENS, InputSpec("x", Datatype.FP32, ("batch",)), examples=examples))
    large, small = (sampler.draw(SHAPE, kind, 7) for kind in (Kind.LARGE, Kind.SMALL))
    assert np.abs(values(large["x"])).max() > 50
    assert np.abs(values(small["x"])).max() < 0.1
    assert set(large["tokens"].array().flat) == {7}


def test_floats_that_become_integers_are_not_made_up() -> None:
    """A magnitude could be an index."""

    def examples(batch: int, seed: int) -> Mapping[str, Tensor]:
        return {"x": torch.full((batch,), 3.0)}

    sampler = Sampler(model(InputSpec("x", Datatype.FP32, ("batch",)), examples=examples), lock_floats=True)
    assert all(set(sampler.draw(SHAPE, kind, 1)["x"].array().flat) == {3.0} for kind in Kind)


def test_integers_that_say_a_size_follow_it() -> None:
    """A length or a position that ends with the axis is never beyond the size that is left."""
    length = InputSpec("length", Datatype.INT64, ("batch",), range=(1, 16))
    place = InputSpec("place", Datatype.INT64, ("batch",), range=(0, 15))
    spec = model(length, place).spec
    cut = crop(spec, Sampler(model(length, place)).draw(SHAPE, Kind.NATURAL, 2), {"batch": 8, "seq": 5})
    assert values(cut["length"]).max() <= 5
    assert values(cut["place"]).max() <= 4


def test_same_and_skewed_rows_crowd_together() -> None:
    """What a routing capacity or a batch statistic hides from random rows."""
    spec = InputSpec("tokens", Datatype.INT64, ("batch", "seq"), range=(0, 1000))
    sampler = Sampler(model(spec))
    assert len({tuple(row) for row in sampler.draw(SHAPE, Kind.SAME, 1)["tokens"].array()}) == 1
    assert len({tuple(row) for row in sampler.draw(SHAPE, Kind.SKEWED, 1)["tokens"].array()}) == 5
