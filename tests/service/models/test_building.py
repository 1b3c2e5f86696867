from __future__ import annotations

from collections.abc import Mapping

import pytest

from service.choices import Above, Fill, Phase, Rows
from service.config import ModelConfig
from service.errors import ConfigError
from service.messages import GraphMode
from service.models.building import (
    FreeDim,
    KnownInput,
    build_axes,
    build_inputs,
    build_outputs,
    build_spec,
    build_state,
    build_variants,
    check_declared,
)
from service.models.place import Place
from service.models.spec import AxisSpec, InputSpec, ModelSpec, StateSpec
from service.tensors import Datatype

PLACE = Place.of_model("encoder", 1)
BUFFERS = {"kv": (10, 4), "flags": (12,), "scalar": ()}

GOOD: dict[str, object] = {
    "name": "encoder",
    "factory": "m:f",
    "inputs": {
        "tokens": {"datatype": "INT64", "shape": ["batch", "seq"], "range": [1, 9]},
        "slot": {"datatype": "INT32", "shape": ["batch"]},
        "mask": {"datatype": "BOOL", "shape": ["batch", "seq"], "fill": "valid"},
    },
    "outputs": {"y": {"datatype": "FP32", "shape": ["batch", 8]}},
    "axes": {"batch": {"max": 6, "above": "split"}, "seq": {"max": 100, "buckets": [16, 64]}},
    "variants": {"adapter": ["base", "legal"]},
    "state": [{"buffer": "kv", "index_input": "slot", "scratch": 2}],
    "rows": "independent",
    "phase": "decode",
    "mode": "full",
    "tolerance": {"FP32": {"rtol": 0.1, "atol": 0.2}},
}


def build(changes: Mapping[str, object] | None = None, known: Mapping[str, KnownInput] | None = None) -> ModelSpec:
    config = ModelConfig.model_validate(GOOD | dict(changes or {}))
    known = known or {}
    inputs = build_inputs(config, known, PLACE)
    axes = build_axes(config, inputs, known, PLACE)
    outputs = build_outputs(config, axes, PLACE)
    state = build_state(config, inputs, BUFFERS, PLACE)
    variants = build_variants(config, [spec.name for spec in inputs], PLACE)
    return build_spec(config, PLACE, inputs=inputs, axes=axes, outputs=outputs, variants=variants, state=state)


def test_a_declaration_becomes_a_spec() -> None:
    """Every declared part arrives; the last bucket is the maximum; the pad value lies in the range."""
    spec = build()
    assert spec.axes == (AxisSpec("batch", 6, (1, 2, 4, 6), Above.SPLIT), AxisSpec("seq", 100, (16, 64, 100)))
    assert spec.inputs[0] == InputSpec("tokens", Datatype.INT64, ("batch", "seq"), pad=1, range=(1, 9))
    assert spec.state == (StateSpec("kv", "slot", scratch=2, slots=8),)
    assert spec.variants == (("adapter", ("base", "legal")),)
    assert spec.tolerance == ((Datatype.FP32, 0.1, 0.2),)
    assert (spec.rows, spec.phase, spec.mode) == (Rows.INDEPENDENT, Phase.DECODE, GraphMode.FULL)


def test_a_source_limits_its_axes() -> None:
    """A program's own range is the default maximum; names that are declared replace the source's."""
    known = {
        "x": KnownInput(Datatype.FP32, (FreeDim("batch", max=8), FreeDim("x_1", 2, 300)), exact=True),
        "z": KnownInput(Datatype.FP32, (FreeDim("batch", max=12), FreeDim("x_1", 2, 200)), exact=True),
    }
    bare = {"inputs": {"x": {"shape": ["batch", "seq"]}, "z": {"shape": ["batch", "seq"]}}, "axes": {}, "state": [], "variants": {}}
    assert [(axis.name, axis.max) for axis in build(bare, known).axes] == [("batch", 8), ("seq", 200)]
    assert [axis.name for axis in build(bare | {"inputs": {}}, known).axes] == ["batch", "x_1"]
    with pytest.raises(ConfigError, match=r"^models\[1\] \(encoder\)\.axes\.batch\.max: is 9, the model's source allows 8$"):
        build(bare | {"axes": {"batch": {"max": 9}}}, known)
    with pytest.raises(ConfigError, match=r"\.inputs\.x\.shape: dimension 0 is fixed to 4 in the model's source$"):
        build(bare, {"x": KnownInput(Datatype.FP32, (4, 4), exact=True), "z": known["z"]})


def one_input(**keys: object) -> dict[str, object]:
    """An input `t` beside the others."""
    return {"inputs": GOOD["inputs"] | {"t": {"shape": ["batch", "seq"], **keys}}}  # type: ignore[operator]


FILE = {"factory": "file:m.py"}
UNTYPED = {"inputs": {"tokens": {"shape": ["batch", "seq"]}}}  # the examples tell the datatype


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        (FILE, None),
        (FILE | UNTYPED, None),
        (FILE | UNTYPED | {"batching": {"axis": "rows"}, "axes": {"rows": {}}}, None),  # an input that is not declared may have it
        ({"program": "m.pt2", "factory": "", "axes": {"time": {}}}, None),
        ({"axes": {"seq": {"max": 8, "buckets": [16]}}}, "axes.seq.buckets: 16 is above the axis' maximum, 8"),
        (FILE | UNTYPED | {"axes": {"seq": {"max": 8, "buckets": [16]}}}, "axes.seq.buckets: 16 is above the axis' maximum, 8"),
        (FILE | {"axes": {"rows": {}}}, "axes.rows: no input has this axis"),
        ({"batching": {"axis": "rows"}}, "batching.axis: no input has the axis rows"),
        (FILE | {"variants": {"adapter": []}}, "variants.adapter: must be a list of different words"),
        (FILE | {"variants": {"adapter": ["x", "x"]}}, "variants.adapter: must be a list of different words"),
        (FILE | {"variants": {"tokens": ["x"]}}, "variants.tokens: is the name of an input, too"),
        (FILE | {"inputs": {"m": {"datatype": "FP32", "fill": "valid"}}}, "inputs.m.fill: valid needs datatype BOOL, not FP32"),
    ],
)
def test_what_the_configuration_itself_tells_is_told_before_a_load(changes: dict[str, object], problem: str | None) -> None:
    """None marks what only the model's source can tell."""
    config = ModelConfig.model_validate(GOOD | changes)
    if problem is None:
        check_declared(config, PLACE)
        return
    with pytest.raises(ConfigError) as caught:
        check_declared(config, PLACE)
    assert str(caught.value).startswith(f"models[1] (encoder).{problem}")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (one_input(), "inputs.t: datatype and shape must be declared: there are no examples to infer them from"),
        (one_input(datatype="FP32", range=[0, 1]), "inputs.t.range: is for integer datatypes, not FP32"),
        (one_input(datatype="UINT8", range=[0, 256]), "inputs.t.range: UINT8 holds 0 … 255 only"),
        (one_input(datatype="INT8", pad=200), "inputs.t.pad: must be an integer in -128 … 127, not 200"),
        (one_input(datatype="INT64", pad=0, range=[1, 5]), "inputs.t.pad: must be an integer in 1 … 5, not 0"),
        (one_input(datatype="INT64", pad=1.5), "inputs.t.pad: must be an integer in"),
        (one_input(datatype="INT64", pad=True), "inputs.t.pad: must be an integer in"),
        (one_input(datatype="BOOL", pad=2), "inputs.t.pad: must be true or false"),
        (one_input(datatype="INT8", fill="valid"), "inputs.t.fill: valid needs datatype BOOL, not INT8"),
        (one_input(datatype="FP32", fill="length"), "inputs.t.fill: length needs an integer datatype, not FP32"),
        (one_input(datatype="INT8", fill_axis="seq"), "inputs.t.fill_axis: is for fill: length and fill: position"),
        (one_input(datatype="INT8", fill="length", fill_axis="time"), "inputs.t.fill_axis: time is no axis of the inputs"),
        (
            one_input(datatype="INT8", fill="position", shape=["batch"], fill_axis="seq"),
            "inputs.t.fill_axis: seq is no axis of this input",
        ),
        (
            one_input(datatype="INT8", fill="position", shape=["batch", "seq", "time"]),
            "inputs.t.fill_axis: must say which axis: seq, time",
        ),
        (one_input(datatype="INT8", fill="position", shape=[4]), "inputs.t.fill_axis: must say which axis: this input has none"),
        (one_input(datatype="INT8", shape=["batch", "?"]), "inputs.t.shape: an input's dimensions need names or sizes, not ?"),
        (one_input(datatype="BOOL", fill="valid", shape=["batch", "time"]), "axes.time: no input that clients send has this axis"),
        ({"axes": {"rows": {}}}, "axes.rows: no input has this axis"),
        ({"axes": {"seq": {"max": 8, "buckets": [16]}}}, "axes.seq.buckets: 16 is above the axis' maximum, 8"),
        ({"axes": {"seq": {"above": "split"}}}, "axes.seq.above: only the batching axis (batch) can be split"),
        ({"rows": "dependent"}, "axes.batch.above: rows that depend on each other can't be split"),
        ({"outputs": {"y": {"datatype": "FP32", "shape": [8]}}}, "axes.batch.above: output y does not have the axis batch"),
        ({"outputs": {"y": {"datatype": "FP32", "shape": ["row"]}}}, "outputs.y.shape: no input has the axis row"),
        ({"batching": {"axis": "row"}}, "batching.axis: no input has the axis row"),
        ({"variants": {"adapter": []}}, "variants.adapter: must be a list of different words, at least one"),
        ({"variants": {"adapter": ["a", "a"]}}, "variants.adapter: must be a list of different words, at least one"),
        ({"variants": {"tokens": ["a"]}}, "variants.tokens: is the name of an input, too"),
        ({"state": [{"buffer": "v", "index_input": "slot"}]}, "state[0].buffer: the model has no buffer v; it has kv, flags, scalar"),
        ({"state": [{"buffer": "kv", "index_input": "slots"}]}, "state[0].index_input: there is no input slots"),
        (
            {"state": [{"buffer": "kv", "index_input": "tokens"}]},
            "state[0].index_input: tokens must be an integer input of shape [batch] that clients send",
        ),
        ({"state": [{"buffer": "kv", "index_input": "slot", "scratch": 10}]}, "state[0].scratch: must be less than the 10 slots of kv"),
        ({"state": [{"buffer": "scalar", "index_input": "slot"}]}, "state[0].scratch: must be less than the 0 slots of scalar"),
        (
            {"state": [{"buffer": name, "index_input": "slot"} for name in ("kv", "flags")]},
            "state[1]: has other slots than kv, which slot addresses too",
        ),
    ],
)
def test_a_wrong_declaration_names_its_place(changes: dict[str, object], problem: str) -> None:
    """One line, beginning with the model's number and name."""
    with pytest.raises(ConfigError) as caught:
        build(changes)
    assert str(caught.value).startswith(f"models[1] (encoder).{problem}")


@pytest.mark.parametrize(
    ("keys", "axis"),
    [
        ({"fill": "length", "shape": ["batch"], "datatype": "INT32"}, "seq"),
        ({"fill": "length", "shape": ["batch"], "datatype": "INT32", "fill_axis": "batch"}, "batch"),
        ({"fill": "position", "datatype": "INT64"}, "seq"),
        ({"fill": "position", "shape": ["batch"], "datatype": "INT64"}, "batch"),
        ({"fill": "valid", "datatype": "BOOL"}, ""),
    ],
)
def test_the_filled_axis_is_the_only_one_it_can_be(keys: dict[str, object], axis: str) -> None:
    """A length or position is about the axis beside the batch, unless told otherwise."""
    spec = build(one_input(**keys)).inputs[-1]
    assert (spec.fill, spec.fill_axis) == (Fill(str(keys["fill"])), axis)
