"""Values for trial runs: what the worker fills in, and inputs made up from what is declared. Integers never leave their range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from service.choices import Fill
from service.models.loaded import TORCH_DTYPES
from service.models.spec import InputSpec, Shape, StateSpec


def concrete(shape: tuple[str | int, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A declared shape at sizes per axis."""
    return tuple(sizes[part] if isinstance(part, str) else part for part in shape)


def filled(spec: InputSpec, sizes: Shape) -> Tensor:
    """A filled input where everything is real: all true, the full length, or the index along the axis."""
    shape, dtype = concrete(spec.shape, sizes), TORCH_DTYPES[spec.datatype]
    match spec.fill:
        case Fill.VALID:
            return torch.ones(shape, dtype=dtype)
        case Fill.LENGTH:
            return torch.full(shape, sizes[spec.fill_axis], dtype=dtype)
        case Fill.POSITION:
            along = spec.shape.index(spec.fill_axis)
            index = torch.arange(shape[along], dtype=dtype).view([-1 if d == along else 1 for d in range(len(shape))])
            return index.expand(shape).clone()
        case None:
            raise ValueError(f"{spec.name} is not filled by the worker")


def made_up(inputs: Sequence[InputSpec], state: Sequence[StateSpec], sizes: Shape, seed: int) -> dict[str, Tensor]:
    """CPU tensors for all inputs at sizes per axis: normal floats, integers of the declared range (else the pad value), scratch slots."""
    g = torch.Generator().manual_seed(seed)
    scratch = {entry.index_input: entry for entry in state}
    values: dict[str, Tensor] = {}
    for spec in inputs:
        shape, dtype = concrete(spec.shape, sizes), TORCH_DTYPES[spec.datatype]
        if spec.fill is not None:
            values[spec.name] = filled(spec, sizes)
        elif spec.name in scratch:
            entry = scratch[spec.name]
            values[spec.name] = entry.slots + torch.arange(shape[0], dtype=dtype) % entry.scratch
        elif spec.range is not None:
            span = min(spec.range[1] - spec.range[0], 2**62)
            values[spec.name] = (spec.range[0] + torch.randint(span + 1, shape, generator=g)).to(dtype)
        elif dtype.is_floating_point:
            values[spec.name] = torch.randn(shape, generator=g).to(dtype)
        else:
            values[spec.name] = torch.full(shape, spec.pad, dtype=dtype)
    return values
