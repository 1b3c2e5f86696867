from pathlib import Path

import numpy as np
import pytest
import torch

from service.cli import requests
from service.errors import ConfigError
from service.pb.graphcache.v1.replay_pb2 import AxisDescription, DescribeModelResponse, StateDescription, TensorDescription, ValueRange
from service.tensors import Datatype, HostTensor

MODEL = DescribeModelResponse(
    model="m",
    version="1",
    inputs=[
        TensorDescription(name="tokens", datatype="INT64", shape=["batch", "seq"], range=ValueRange(low=3, high=5)),
        TensorDescription(name="x", datatype="BF16", shape=["batch", "2"]),
        TensorDescription(name="index", datatype="INT32", shape=["batch"]),
        TensorDescription(name="flag", datatype="BOOL", shape=["batch"]),
        TensorDescription(name="slot", datatype="INT64", shape=["batch"]),
    ],
    axes=[AxisDescription(name="batch", max=8), AxisDescription(name="seq", max=64)],
    batch_axis="batch",
    state=[StateDescription(index_input="slot", slots=6)],
)


def test_random_integers_cover_the_declared_range_and_nothing_else() -> None:
    """Both ends are drawn; an index without a range stays zero."""
    inputs = requests.random_inputs(MODEL, {"batch": 6, "seq": 50}, np.random.default_rng(0))
    assert inputs["tokens"].shape == (6, 50)
    assert set(inputs["tokens"].array().reshape(-1).tolist()) == {3, 4, 5}
    assert not inputs["index"].array().any()
    assert inputs["x"].datatype is Datatype.BF16
    assert inputs["x"].shape == (6, 2)


def test_random_slots_are_distinct_and_too_many_rows_are_an_error() -> None:
    """Two rows never name one slot."""
    rng = np.random.default_rng(0)
    slots = requests.random_inputs(MODEL, {"batch": 6, "seq": 1}, rng)["slot"].array().tolist()
    assert sorted(slots) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ConfigError, match="'slot': 7 rows, but there are only 6 slots"):
        requests.random_inputs(MODEL, {"batch": 7, "seq": 1}, rng)


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [({"batch": 1}, "no size for axis 'seq'"), ({"batch": 1, "seq": 1, "time": 2}, "no axis 'time'; its axes are batch, seq")],
)
def test_sizes_must_name_exactly_the_models_axes(sizes: dict[str, int], problem: str) -> None:
    """A missing and an unknown axis are named."""
    with pytest.raises(ConfigError, match=problem):
        requests.complete_sizes(MODEL, sizes)


def test_bfloat16_rounds_as_torch_does() -> None:
    """To the nearest, ties to even, over magnitudes and signs."""
    rng = np.random.default_rng(1)
    values = (rng.standard_normal(4096) * 10.0 ** rng.integers(-30, 30, 4096)).astype(np.float32)
    values[:4] = (0.0, -0.0, np.inf, 1 + 2**-8)
    made = requests.from_array(Datatype.BF16, values)
    expected = torch.from_numpy(values).bfloat16()
    assert np.array_equal(made.bits(), expected.view(torch.uint16).numpy())
    assert np.array_equal(requests.to_array(made), expected.float().numpy())


def test_arrays_survive_a_file(tmp_path: Path) -> None:
    """Outputs written to .npz can be sent as inputs; BF16 travels as float32."""
    inputs = requests.random_inputs(MODEL, {"batch": 3, "seq": 4}, np.random.default_rng(2))
    path = tmp_path / "file.npz"
    requests.write_npz(path, inputs)
    again = requests.read_npz(path, MODEL)
    assert {name: bytes(t.data) for name, t in again.items()} == {name: bytes(t.data) for name, t in inputs.items()}


def test_a_file_that_does_not_fit_names_what_is_wrong(tmp_path: Path) -> None:
    """A missing, an unknown and a wrongly typed array; a file that is none."""
    inputs = {
        name: requests.to_array(t) for name, t in requests.random_inputs(MODEL, {"batch": 1, "seq": 1}, np.random.default_rng(0)).items()
    }
    path = tmp_path / "file.npz"
    flaws = {
        "input 'x' is missing": {name: array for name, array in inputs.items() if name != "x"},
        "no input 'y'": {**inputs, "y": np.zeros(1)},
        "input 'tokens' is float64, expected int64": {**inputs, "tokens": np.zeros((1, 1))},
    }
    for problem, arrays in flaws.items():
        np.savez(path, allow_pickle=False, **arrays)
        with pytest.raises(ConfigError, match=problem):
            requests.read_npz(path, MODEL)
    path.write_text("no archive")
    with pytest.raises(ConfigError, match=r"file\.npz: "):
        requests.read_npz(path, MODEL)


def test_tensors_survive_the_wire() -> None:
    """Datatype, shape and bytes."""
    tensor = HostTensor.of(Datatype.FP16, np.arange(6, dtype=np.float16).reshape(2, 3))
    back = requests.from_wire(requests.to_wire({"t": tensor}))["t"]
    assert (back.datatype, back.shape, bytes(back.data)) == (tensor.datatype, tensor.shape, bytes(tensor.data))
