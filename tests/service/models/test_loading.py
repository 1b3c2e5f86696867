from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from service.choices import Above, Fill
from service.errors import ConfigError
from service.models.loaded import LoadedModel
from service.models.spec import UNNAMED, AxisSpec, InputSpec, OutputSpec, StateSpec
from service.tensors import Datatype

FILES = Path(__file__).parent / "files"

Load = Callable[..., LoadedModel]


def test_everything_is_inferred_from_two_example_batches(load: Load) -> None:
    """A file with make_model and example_inputs needs no declaration: names, datatypes, the batch axis, its default maximum."""
    model = load(factory="file:rows.py")
    assert model.spec.inputs == (InputSpec("x", Datatype.FP32, ("batch", 4)),)
    assert model.spec.outputs == (OutputSpec("output", Datatype.FP32, ("batch", 3)),)
    assert model.spec.axes == (AxisSpec("batch", 64, (1, 2, 4, 8, 16, 32, 64), Above.REJECT),)
    assert model.weights == "m:1@3"


def test_inferred_outputs_follow_axes_not_numbers(load: Load) -> None:
    """A dimension is the batch only where it followed it; one that follows the values, or twice the batch, has no axis."""
    outputs = {output.name: (output.datatype, output.shape) for output in load(factory="file:many.py").spec.outputs}
    assert outputs == {
        "total": (Datatype.BF16, (6,)),
        "kept": (Datatype.BOOL, ("batch", 6)),
        "trimmed": (Datatype.BF16, ("batch", UNNAMED)),
        "twice": (Datatype.INT32, (UNNAMED,)),
        "same": (Datatype.INT64, ("batch",)),
    }


def test_what_is_declared_in_part_is_completed(load: Load) -> None:
    """A range and a pad value can be given without repeating datatype and shape."""
    spec = load(factory="file:many.py", inputs={"ids": {"range": [1, 6], "pad": 1}}, axes={"batch": {"max": 6, "buckets": [2, 4]}}).spec
    assert {entry.name: entry.shape for entry in spec.inputs} == {"ids": ("batch",), "x": ("batch", 6), "keep": ("batch", 6)}
    assert spec.inputs[0] == InputSpec("ids", Datatype.INT32, ("batch",), pad=1, range=(1, 6))
    assert spec.axes == (AxisSpec("batch", 6, (2, 4, 6)),)


def test_trial_runs_leave_the_serving_instance_alone(load: Load) -> None:
    """A model that changes itself gives the answer of a model that never ran."""
    model = load(factory="file:counting.py")
    assert model.forward({"x": torch.zeros(1, 2)}, ())["output"].tolist() == [[1.0, 1.0]]


def test_a_model_that_builds_itself_in_its_first_run_is_built_when_loaded(load: Load, tmp_path: Path) -> None:
    """Its late parts take part in the fingerprint and can have weights of a file."""
    model = load(factory="file:late.py")
    assert set(model.module.state_dict()) >= {"head.weight", "head.bias", "norm.running_mean"}
    assert not any(parameter.requires_grad for parameter in model.module.parameters())
    weights = {name: torch.zeros_like(tensor) for name, tensor in model.module.state_dict().items()} | {
        "head.bias": torch.tensor([7.0, 8.0])
    }
    save_file(weights, tmp_path / "late.safetensors")
    shutil.copy(FILES / "late.py", tmp_path)
    assert load(tmp_path, factory="file:late.py", weights="late.safetensors").forward({"x": torch.ones(1, 5)}, ())["output"].tolist() == [
        [7.0, 8.0]
    ]


def test_modes_of_submodules_stay_as_the_factory_left_them(load: Load) -> None:
    """Training mode is a property to be judged, not to be repaired; MIN_BATCH is respected by the trial runs."""
    model = load(factory="file:pairs.py")
    assert not model.module.training
    assert [name for name, part in model.module.named_modules() if part.training] == ["norm"]


def test_declared_inputs_need_no_examples(load: Load) -> None:
    """Values are made up from datatypes, ranges, fills and scratch slots, and outputs inferred along two axes."""
    model = load(
        factory="file:cache.py",
        inputs={
            "x": {"datatype": "FP32", "shape": ["batch", "seq"]},
            "slot": {"datatype": "INT64", "shape": ["batch"]},
            "length": {"datatype": "INT32", "shape": ["batch"], "fill": "length"},
            "place": {"datatype": "INT64", "shape": ["batch", "seq"], "fill": "position"},
        },
        axes={"seq": {"max": 32, "buckets": [8, 16, 32]}, "batch": {"max": 4}},
        state=[{"buffer": "sums", "index_input": "slot", "scratch": 2}],
    )
    spec = model.spec
    assert [axis.name for axis in spec.axes] == ["batch", "seq"]
    assert [(entry.fill, entry.fill_axis) for entry in spec.inputs] == [
        (None, ""),
        (None, ""),
        (Fill.LENGTH, "seq"),
        (Fill.POSITION, "seq"),
    ]
    assert spec.outputs == (
        OutputSpec("output_0", Datatype.FP32, ("batch", 1)),
        OutputSpec("output_1", Datatype.FP32, ("batch", "seq")),
    )
    assert spec.state == (StateSpec("sums", "slot", scratch=2, slots=8),)
    assert model.state["sums"] is model.module.get_buffer("sums")
    assert not model.state["sums"].any()


def test_examples_from_a_file(load: Load) -> None:
    """An .npz gives whole rows, chosen by the seed, in place of example_inputs."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = FILES.parent / "rows.npz"
    try:
        np.savez(path, x=x)
        model = load(factory="file:rows.py", examples="../rows.npz")
    finally:
        path.unlink()
    assert model.examples is not None
    batch = model.examples(7, 5)["x"]
    assert batch.shape == (7, 4)
    assert {tuple(row) for row in batch.tolist()} == {tuple(row) for row in x.tolist()}
    assert torch.equal(batch, model.examples(7, 5)["x"])


def test_variants_are_tried_each(load: Load) -> None:
    """Every choice of a closed set runs once before it may be asked for."""
    inputs = {"x": {"datatype": "FP32", "shape": ["batch", 128]}}
    model = load(factory="service.models.demo:adapters", inputs=inputs, variants={"adapter": ["base", "legal"]})
    assert model.spec.all_variants() == ((("adapter", "base"),), (("adapter", "legal"),))
    with pytest.raises(ConfigError, match=r"^models\[1\] \(m\): a trial run with x \[2, 4\] raised TypeError: .*tone"):
        load(factory="file:rows.py", variants={"tone": ["low", "high"]})


def test_the_fingerprint_follows_code_arguments_and_layout_only(load: Load, tmp_path: Path) -> None:
    """The same file in another folder has the same fingerprint; other arguments, other code and layouts do not; weights don't matter."""
    original = load(factory="file:rows.py")
    shutil.copy(FILES / "rows.py", tmp_path / "copied.py")
    assert load(tmp_path, factory="file:copied.py", name="other").program == original.program
    same_weights = {name: torch.ones_like(tensor) for name, tensor in original.module.state_dict().items()}
    save_file(same_weights, tmp_path / "w.safetensors")
    assert load(tmp_path, factory="file:copied.py", weights="w.safetensors").program == original.program
    assert load(factory="file:rows.py", args={"width": 4}).program != original.program
    changed = (FILES / "rows.py").read_text().replace("self.head(x)", "self.head(x) * 2")
    (tmp_path / "copied.py").write_text(changed)
    twice = load(tmp_path, factory="file:copied.py")
    assert twice.program != original.program
    x = torch.randn(2, 4)
    assert torch.equal(twice.forward({"x": x}, ())["output"], original.forward({"x": x}, ())["output"] * 2)


def test_a_generation_names_the_load_and_other_weights_keep_the_fingerprint(load: Load, tmp_path: Path) -> None:
    """A reload is a load with the next generation: graphs depend on it, costs do not."""
    shutil.copy(FILES / "rows.py", tmp_path)
    save_file({"head.weight": torch.zeros(3, 4), "head.bias": torch.ones(3)}, tmp_path / "ones.safetensors")
    first, second = load(tmp_path, factory="file:rows.py"), load(tmp_path, factory="file:rows.py", weights="ones.safetensors", generation=4)
    assert (first.weights, second.weights) == ("m:1@3", "m:1@4")
    assert (first.program, first.spec) == (second.program, second.spec)
    assert second.forward({"x": torch.ones(1, 4)}, ())["output"].tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"how": "factory"}, ".factory: file:broken.py(how='factory') raised KeyError: 'no such thing'"),
        ({"how": "exit"}, ".factory: file:broken.py(how='exit') raised SystemExit: 3"),
        ({}, ".factory: file:broken.py() raised TypeError: make_model() missing 1 required positional argument: 'how'"),
        ({"how": "no module"}, ".factory: file:broken.py returned str, not a torch.nn.Module"),
        ({"how": "raises"}, ": a trial run with x [2, 2] raised RuntimeError: two lines"),
        ({"how": "text"}, ".outputs: model returned str, not tensors"),
        ({"how": "list of text"}, ".outputs: output output is str, not a tensor"),
        ({"how": "complex"}, ".outputs.y: dtypes "),
    ],
)
def test_whatever_a_model_raises_is_one_line_that_names_it(load: Load, keys: dict[str, str], problem: str) -> None:
    """A load that fails is an error of the configuration, with the exception's type, and nothing worse."""
    with pytest.raises(ConfigError) as caught:
        load(factory="file:broken.py", args=keys)
    assert str(caught.value).startswith(f"models[1] (m){problem}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"inputs": {"y": {"datatype": "FP32", "shape": ["batch"]}}}, ".inputs.y: the model's source has no such input"),
        ({"inputs": {"x": {"datatype": "INT64"}}}, ".inputs.x.datatype: is INT64, the model's source has FP32"),
        ({"inputs": {"x": {"shape": ["batch"]}}}, ".inputs.x.shape: has 1 dimensions, the model's source has 2"),
        ({"inputs": {"x": {"shape": ["batch", 5]}}}, ".inputs.x.shape: dimension 1 is 5, the model's source has 4"),
        ({"inputs": {"x": {"shape": [2, 4]}}}, ".inputs.x.shape: dimension 0 is 2, but changes in the examples"),
        ({"inputs": {"x": {"shape": ["batch", "batch"]}}}, ".inputs.x.shape: examples have [2, 4], where batch is 2"),
        ({"outputs": {"y": {"datatype": "FP16", "shape": ["batch", 3]}}}, ".outputs.y.datatype: is FP16, the model gives FP32"),
        (
            {"outputs": {"y": {"datatype": "FP32", "shape": ["batch", 4]}}},
            ".outputs.y.shape: is [batch, 4], the model gives [2, 3] for {'batch': 2}",
        ),
        ({"outputs": {"y": {"datatype": "FP32", "shape": [2, 3]}}}, ".outputs.y.shape: is [2, 3], the model gives [3, 3] for {'batch': 3}"),
        ({"outputs": {"y": {"datatype": "FP32", "shape": ["batch"]}}}, ".outputs.y.shape: is [batch], the model gives [2, 3]"),
        ({"outputs": {"y": {"datatype": "FP32", "shape": ["rows", 3]}}}, ".outputs.y.shape: no input has the axis rows"),
        (
            {"outputs": {n: {"datatype": "FP32", "shape": ["batch", 3]} for n in "yz"}},
            ".outputs: model returned 1 outputs; declared are 2",
        ),
        ({"weights": "none.safetensors"}, ".weights: none.safetensors: no such file"),
        ({"examples": "none.npz"}, ".examples: none.npz: no such file"),
        (
            {"factory": "file:cache.py"},
            ".inputs: must be declared (name: {datatype: …, shape: [batch, …]}): the source has no example_inputs",
        ),
    ],
)
def test_a_declaration_that_does_not_fit_the_model_names_the_place(load: Load, keys: dict[str, object], problem: str) -> None:
    """What is declared is compared with what the model takes and gives at two sizes."""
    with pytest.raises(ConfigError) as caught:
        load(**{"factory": "file:rows.py", **keys})
    assert str(caught.value).startswith(f"models[1] (m){problem}")


def test_an_output_that_may_or_may_not_follow_an_axis_must_be_declared(load: Load) -> None:
    """Examples of one width can't tell a fixed size from an axis."""
    inputs = {"x": {"shape": ["batch", "width"]}, "keep": {"shape": ["batch", "width"]}}
    with pytest.raises(ConfigError, match=r"\.outputs\.total: must be declared: the examples show one size of width only, 6"):
        load(factory="file:many.py", inputs=inputs)
