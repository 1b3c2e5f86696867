"""The step as it is: parts stacked at their exact sizes, the model's own code, outputs cut back. Shared by all backends."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from service.backends.base import Batch, Outputs
from service.backends.staging import UNSIGNED, Bits, filled
from service.errors import ModelRaised
from service.models.loaded import DATATYPES, TORCH_DTYPES, LoadedModel
from service.models.spec import InputSpec, OutputSpec
from service.tensors import HostTensor


def stack_inputs(model: LoadedModel, batch: Batch) -> dict[str, torch.Tensor]:
    """The batch's inputs in host memory of their own, rows one below the other."""
    return {spec.name: _stack(spec, batch, model.spec.batch_axis) for spec in model.spec.inputs}


def _stack(spec: InputSpec, batch: Batch, batch_axis: str) -> torch.Tensor:
    arrays: list[Bits] = [
        part.inputs[spec.name].bits() if spec.fill is None else filled(spec, part.shape, batch_axis) for part in batch.parts
    ]
    if len(arrays) == 1 or batch_axis not in spec.shape:
        array = arrays[0].copy() if spec.fill is None else arrays[0]  # a model may write to what it is given
    else:
        array = np.concatenate(arrays, axis=spec.shape.index(batch_axis))
    return torch.from_numpy(array).view(TORCH_DTYPES[spec.datatype])


def split_outputs(model: LoadedModel, batch: Batch, outputs: Mapping[str, torch.Tensor]) -> list[Outputs]:
    """Outputs in host memory, each part's own. Raises ModelRaised where they are not what was declared.

    A single part's outputs may have any shape: sizes that depend on values are fine in an eager run.
    """
    result: list[Outputs] = [{} for _ in batch.parts]
    for spec in model.spec.outputs:
        output: object = outputs[spec.name]
        if not isinstance(output, torch.Tensor):
            raise ModelRaised(TypeError(f"output {spec.name} is a {type(output).__name__}, no tensor"))
        if output.dtype is not TORCH_DTYPES[spec.datatype]:
            actual = DATATYPES.get(output.dtype, output.dtype)
            raise ModelRaised(TypeError(f"output {spec.name} is {actual}, declared is {spec.datatype}"))
        bits = output.detach().contiguous().view(UNSIGNED[spec.datatype.itemsize]).numpy()
        if len(batch.parts) == 1:
            result[0][spec.name] = HostTensor(spec.datatype, tuple(output.shape), bits.tobytes())
        else:
            _split(spec, bits, batch, model.spec.batch_axis, result)
    return result


def _split(spec: OutputSpec, bits: Bits, batch: Batch, batch_axis: str, result: list[Outputs]) -> None:
    """Only the rows need cutting: the parts are equal in all other axes."""
    axis = spec.shape.index(batch_axis) if batch_axis in spec.shape else None
    if axis is None or bits.ndim != len(spec.shape) or bits.shape[axis] != batch.shape[batch_axis]:
        problem = f"output {spec.name} of shape {list(bits.shape)} has no rows to give back to {len(batch.parts)} requests"
        raise ModelRaised(ValueError(problem))
    ends = np.cumsum([part.shape[batch_axis] for part in batch.parts])
    for outputs, rows in zip(result, np.split(bits, ends[:-1], axis), strict=True):
        outputs[spec.name] = HostTensor(spec.datatype, rows.shape, rows.tobytes())
