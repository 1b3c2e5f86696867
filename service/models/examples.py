"""Example inputs from a file of numpy arrays, as `example_inputs` of a Python file would give them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from service.config import InputConfig
from service.models.loaded import ExampleInputs
from service.models.place import Place
from service.tensors import Datatype


def examples_from_file(path: Path, declared: Mapping[str, InputConfig], batch_axis: str, place: Place) -> ExampleInputs:
    """Rows of an .npz file, an array for each input; BF16 is kept as float32 or as uint16 bits. Raises ConfigError."""
    place.existing(path)
    with place.blamed(f"reading {path.name}"), np.load(path, allow_pickle=False) as arrays:
        tensors = {name: _tensor(arrays[name], declared.get(name, InputConfig())) for name in arrays.files}
    along = {name: d for name in tensors if (d := _batch_dimension(declared.get(name, InputConfig()), batch_axis)) is not None}
    counts = {tensors[name].shape[d] if d < tensors[name].dim() else 0 for name, d in along.items()}
    if len(counts) != 1 or 0 in counts:
        raise place.error(f"{path.name}: all arrays need the same number of rows, at least one")
    rows = counts.pop()

    def examples(batch: int, seed: int) -> dict[str, Tensor]:
        chosen = torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).repeat(-(-batch // rows))[:batch]
        return {name: tensor.index_select(along[name], chosen) if name in along else tensor for name, tensor in tensors.items()}

    return examples


def _tensor(array: np.ndarray, declared: InputConfig) -> Tensor:
    if declared.datatype is not Datatype.BF16:
        return torch.from_numpy(array)
    return torch.from_numpy(array).view(torch.bfloat16) if array.dtype == np.uint16 else torch.from_numpy(array).to(torch.bfloat16)


def _batch_dimension(declared: InputConfig, batch_axis: str) -> int | None:
    if declared.shape is None:
        return 0
    return declared.shape.index(batch_axis) if batch_axis in declared.shape else None
