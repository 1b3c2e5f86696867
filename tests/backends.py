"""Small models, requests for them, and a backend with its two threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from cachepolicy.buckets import Bucket
from service.backends.base import Batch, Outputs, Padding, Part, Recording
from service.backends.opening import open_backend
from service.choices import Compile, Fill
from service.lane import LaneThread
from service.models.loaded import LoadedModel
from service.models.spec import AxisSpec, InputSpec, ModelSpec, OutputSpec, StateSpec, Variant
from service.tensors import Datatype, HostTensor
from tests.modules import steps

Declared = dict[str, tuple[Datatype, list[str | int]]]


class Rig:
    """A backend, its lane and its capturer's thread."""

    def __init__(self, device: str) -> None:
        self.backend = open_backend(device)
        self.device = torch.device(self.backend.device)
        self.lane = LaneThread(self.backend.lane, "lane")
        self.capturer = LaneThread(self.backend.capturer, "capturer")
        self._loads = 0
        self._recordings: list[Recording] = []

    def load(self, spec: ModelSpec, module: nn.Module, state: dict[str, str] | None = None) -> LoadedModel:
        """Put a module on the device; each load has a name of its own."""
        self._loads += 1
        module = module.to(self.device).eval().requires_grad_(requires_grad=False)
        loaded = LoadedModel(spec, module, self.device, "program", f"{spec.name}:1@{self._loads}")
        loaded.state.update({name: module.get_buffer(name) for name in state or ()})
        return loaded

    def plain_model(self, module: nn.Module, compile: Compile = Compile.NONE) -> LoadedModel:
        """A model from x [batch, 4] to y [batch, 4]."""
        shape: list[str | int] = ["batch", 4]
        return model(self, module, inputs={"x": (Datatype.FP32, shape)}, outputs={"y": (Datatype.FP32, shape)}, compile=compile)

    def counter_model(self) -> LoadedModel:
        """A model with 16 slots of declared state and one scratch slot."""
        return model(
            self,
            steps.Counter(),
            inputs={"x": (Datatype.FP32, ["batch", 4]), "slot": (Datatype.INT64, ["batch"])},
            outputs={"y": (Datatype.FP32, ["batch", 4])},
            state=(StateSpec("total", "slot", 1, 16),),
        )

    @staticmethod
    def batch(loaded: LoadedModel, parts: Sequence[Part]) -> Batch:
        """Stack parts."""
        return Batch.of(parts, loaded.spec.batch_axis)

    def record(self, loaded: LoadedModel, bucket: Bucket, variant: Variant = (), *, own_pool: bool = False) -> Recording:
        """In the capturer's thread."""
        recording = self.capturer.submit(lambda: self.backend.record(loaded, variant, bucket, own_pool=own_pool)).result()
        self._recordings.append(recording)
        return recording

    def replay(self, recording: Recording, parts: Sequence[Part], padding: Padding = Padding.VALUE) -> list[Outputs]:
        """In the lane's thread."""
        return self.lane.submit(lambda: recording.replay(Batch.of(parts, "batch"), padding)).result()

    def eager(self, loaded: LoadedModel, parts: Sequence[Part], variant: Variant = ()) -> list[Outputs]:
        """In the lane's thread."""
        return self.lane.submit(lambda: self.backend.run_eager(loaded, variant, self.batch(loaded, parts))).result()

    def close(self, recording: Recording) -> None:
        """In the capturer's thread, after the lane is done with it."""
        self.lane.barrier()
        self.capturer.submit(recording.close).result()

    def tensor(self, parts: Sequence[Part]) -> torch.Tensor:
        """The first part's x on the device."""
        return torch.from_numpy(np.array(parts[0].inputs["x"].array())).to(self.device)

    def close_all(self) -> None:
        """Whatever was recorded since the last time, closed or not."""
        for recording in self._recordings:
            self.close(recording)
        self._recordings.clear()

    def synchronise(self) -> None:
        """Wait for what this thread has put on the device."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()


@contextmanager
def opened(device: str) -> Iterator[Rig]:
    """A rig, closed at the end."""
    rig = Rig(device)
    yield rig
    rig.close_all()
    rig.lane.close()
    rig.capturer.close()
    rig.backend.close()


def model(
    rig: Rig,
    module: nn.Module,
    inputs: Declared,
    outputs: Declared,
    axes: dict[str, tuple[int, ...]] | None = None,
    pads: dict[str, float] | None = None,
    fills: dict[str, tuple[Fill, str]] | None = None,
    state: tuple[StateSpec, ...] = (),
    **options: Any,
) -> LoadedModel:
    """A loaded model by its declared shapes."""
    axes = axes or {"batch": (2, 4, 8, 32)}
    spec = ModelSpec(
        "step",
        "1",
        tuple(
            InputSpec(
                name,
                datatype,
                tuple(shape),
                pad=(pads or {}).get(name, 0),
                fill=(fills or {}).get(name, (None, ""))[0],
                fill_axis=(fills or {}).get(name, (None, ""))[1],
            )
            for name, (datatype, shape) in inputs.items()
        ),
        tuple(OutputSpec(name, datatype, tuple(shape)) for name, (datatype, shape) in outputs.items()),
        tuple(AxisSpec(name, sizes[-1], sizes) for name, sizes in axes.items()),
        state=state,
        **options,
    )
    return rig.load(spec, module, {entry.buffer: entry.buffer for entry in state})


def tokens_spec() -> dict[str, Any]:
    """Token ids with a mask that the worker fills; outputs with and without the seq axis."""
    return {
        "inputs": {"tokens": (Datatype.INT64, ["batch", "seq"]), "mask": (Datatype.BOOL, ["batch", "seq"])},
        "outputs": {"pooled": (Datatype.FP32, ["batch", 16]), "hidden": (Datatype.FP32, ["batch", "seq", 16])},
        "axes": {"batch": (4, 8), "seq": (8,)},
        "fills": {"mask": (Fill.VALID, "seq")},
    }


def ragged(batch: int = 4, seq: int = 3, pad: float = 0.0) -> dict[str, Any]:
    """An input, all three kinds of filled inputs, and outputs that show whole static inputs (as one row of fixed size)."""
    return {
        "inputs": {
            "x": (Datatype.FP32, ["batch", "seq"]),
            "valid": (Datatype.BOOL, ["batch", "seq"]),
            "length": (Datatype.INT32, ["batch"]),
            "position": (Datatype.INT64, ["batch", "seq"]),
        },
        "outputs": {
            "whole": (Datatype.FP32, [batch * seq]),
            "valid": (Datatype.BOOL, [batch * seq]),
            "length": (Datatype.INT32, [batch]),
            "position": (Datatype.INT64, [batch * seq]),
        },
        "axes": {"batch": (4,), "seq": (3,)},
        "pads": {"x": pad},
        "fills": {"valid": (Fill.VALID, "seq"), "length": (Fill.LENGTH, "seq"), "position": (Fill.POSITION, "seq")},
    }


def part(inputs: dict[str, HostTensor], **shape: int) -> Part:
    """One request's rows."""
    return Part(inputs, shape)


def reals(*shape: int, seed: int = 0, scale: float = 1.0) -> HostTensor:
    """Normal values."""
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return HostTensor.of(Datatype.FP32, values.astype(np.float32))


def integers(*shape: int, seed: int = 0) -> HostTensor:
    """Token ids below 50."""
    return HostTensor.of(Datatype.INT64, np.random.default_rng(seed).integers(0, 50, shape))


def close(got: HostTensor, want: HostTensor, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    """Equal in type and shape, and in values within a tolerance."""
    assert (got.datatype, got.shape) == (want.datatype, want.shape)
    np.testing.assert_allclose(got.array().astype(np.float64), want.array().astype(np.float64), rtol=rtol, atol=atol)
