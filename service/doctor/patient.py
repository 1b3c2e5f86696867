"""The model under examination, with values to run it on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from cachepolicy.buckets import Bucket
from service.backends.base import Batch, Part
from service.backends.eager import stack_inputs
from service.errors import ConfigError
from service.models.loaded import DATATYPES, LoadedModel
from service.models.spec import ModelSpec, Shape, Variant
from service.models.values import made_up
from service.tensors import HostTensor


@dataclass(frozen=True, slots=True, eq=False)
class Patient:
    """One variant of a model at exact sizes, and the bucket that would serve them."""

    model: LoadedModel
    variant: Variant
    sizes: Shape
    bucket: Bucket

    @classmethod
    def at(cls, model: LoadedModel, variant: Variant, wanted: Mapping[str, int]) -> Patient:
        """An axis that is not named takes its smallest bucket of at least three: fewer rows hide what they do to each other.

        Raises ConfigError where no bucket covers the sizes.
        """
        spec = model.spec
        for name in wanted:
            if spec.axis(name) is None:
                raise ConfigError(f"{name}: {spec.name} has no such axis; it has {', '.join(axis.name for axis in spec.axes) or 'none'}")
        sizes = {axis.name: wanted.get(axis.name, min((size for size in axis.sizes if size >= 3), default=axis.max)) for axis in spec.axes}
        bucket = spec.ladder.fit(sizes)
        if bucket is None:
            raise ConfigError(f"{', '.join(f'{name}={size}' for name, size in sizes.items())}: above the largest bucket of {spec.name}")
        return cls(model, variant, sizes, bucket)

    @property
    def spec(self) -> ModelSpec:
        """The model's spec."""
        return self.model.spec

    def batch(self, seed: int, sizes: Shape | None = None) -> Batch:
        """One request of the patient's sizes, or of others."""
        sizes = self.sizes if sizes is None else sizes
        if self.model.examples is not None:
            values = self.model.examples(sizes.get(self.spec.batch_axis, 1), seed)
        else:
            values = made_up(self.spec.inputs, self.spec.state, sizes, seed)
        inputs = {spec.name: _host(values[spec.name]) for spec in self.spec.requested_inputs}
        return Batch([Part(inputs, sizes)], sizes)

    def inputs(self, seed: int) -> dict[str, torch.Tensor]:
        """The same values on the model's device."""
        return {name: tensor.to(self.model.device) for name, tensor in stack_inputs(self.model, self.batch(seed)).items()}


def _host(tensor: torch.Tensor) -> HostTensor:
    tensor = tensor.detach().cpu().contiguous()
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    return HostTensor(DATATYPES[tensor.dtype], tuple(tensor.shape), data)
