from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from service.config import InputConfig
from service.errors import ConfigError
from service.models.examples import examples_from_file
from service.models.place import Place
from service.tensors import Datatype

PLACE = Place("models[0] (m).examples")


def test_rows_stay_together(tmp_path: Path) -> None:
    """A row of one array goes with the same row of the others, wherever their batch dimension is; arrays without one come whole."""
    np.savez(tmp_path / "e.npz", a=np.arange(5), b=np.arange(10).reshape(2, 5), c=np.ones(3))
    declared = {
        "b": InputConfig(datatype=Datatype.INT64, shape=(2, "batch")),
        "c": InputConfig(datatype=Datatype.FP64, shape=(3,)),
    }
    batch = examples_from_file(tmp_path / "e.npz", declared, "batch", PLACE)(12, 1)
    assert batch["b"].shape == (2, 12)
    assert torch.equal(batch["b"], torch.stack((batch["a"], batch["a"] + 5)))
    assert batch["c"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("stored", [np.array([[1.0], [2.5]], np.float32), np.array([[0x3F80], [0x4020]], np.uint16)])
def test_bf16_is_kept_as_floats_or_bits(tmp_path: Path, stored: np.ndarray) -> None:
    """Numpy has no BF16: both usual ways of keeping it are read."""
    np.savez(tmp_path / "e.npz", x=stored)
    declared = {"x": InputConfig(datatype=Datatype.BF16, shape=("batch", 1))}
    x = examples_from_file(tmp_path / "e.npz", declared, "batch", PLACE)(2, 0)["x"]
    assert x.dtype is torch.bfloat16
    assert sorted(x.flatten().tolist()) == [1.0, 2.5]


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"a": np.ones(2), "b": np.ones(3)}, "e.npz: all arrays need the same number of rows, at least one"),
        ({"a": np.ones((0, 2))}, "e.npz: all arrays need the same number of rows, at least one"),
        ({"a": np.array(1.0)}, "e.npz: all arrays need the same number of rows, at least one"),
        ({"a": np.array([{}], dtype=object)}, "reading e.npz raised ValueError: Object arrays cannot be loaded"),
    ],
)
def test_arrays_that_are_no_rows_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], problem: str) -> None:
    """Unequal, empty, without a dimension, or pickled."""
    np.savez(tmp_path / "e.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^models\[0\] \(m\)\.examples: ") as caught:
        examples_from_file(tmp_path / "e.npz", {}, "batch", PLACE)
    assert problem in str(caught.value)
