"""A backend with its two threads and a proof; models of files, or of modules made up in a test."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import torch
from torch import nn

from cachepolicy.buckets import Bucket
from service.backends.base import Backend, Batch, Outputs, Padding, Part, Recording
from service.backends.opening import open_backend
from service.config import ModelConfig
from service.lane import LaneThread
from service.models.loaded import DATATYPES, TORCH_DTYPES, LoadedModel
from service.models.loading import load_model
from service.models.spec import AxisSpec, InputSpec, ModelSpec, OutputSpec, StateSpec, Variant
from service.recorder import Verdict
from service.tensors import HostTensor
from service.verification import Proof

T = TypeVar("T")

MODELS = Path(__file__).parents[2] / "models"


def host(tensor: torch.Tensor) -> HostTensor:
    """A tensor as a request carries it."""
    tensor = tensor.detach().contiguous()
    return HostTensor(DATATYPES[tensor.dtype], tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy().tobytes())


def value(tensor: HostTensor) -> torch.Tensor:
    """A tensor of a reply."""
    return torch.frombuffer(bytearray(tensor.data), dtype=TORCH_DTYPES[tensor.datatype]).view(tensor.shape)


def file_module(path: Path) -> ModuleType:
    """A model's file, run anew."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class Bench:
    """A backend, its lane, its capturer's thread, and a proof."""

    backend: Backend
    lane: LaneThread
    capturer: LaneThread
    proof: Proof = field(init=False)
    _loads: dict[str, Callable[[], LoadedModel]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.proof = Proof(self.backend, lambda model: self._loads[model.weights]())

    @property
    def device(self) -> torch.device:
        """Where models live."""
        return torch.device(self.backend.device)

    def of_file(self, path: Path) -> LoadedModel:
        """A model of a file, with buckets 4 and 8."""
        config = ModelConfig.model_validate(
            {
                "name": path.stem,
                "factory": f"file:{path}",
                "axes": {"batch": {"max": 8, "buckets": [4, 8]}},
            }
        )

        def load() -> LoadedModel:
            return load_model(config, device=self.device, allowed=[f"file:{path}"], generation=1, base_dir=path.parent)

        model = load()
        self._loads[model.weights] = load
        return model

    def of_module(
        self,
        make: Callable[[], nn.Module],
        *,
        inputs: tuple[InputSpec, ...],
        outputs: tuple[OutputSpec, ...],
        axes: tuple[AxisSpec, ...],
        state: tuple[StateSpec, ...] = (),
        examples: Callable[[int, int], Mapping[str, torch.Tensor]] | None = None,
        variants: tuple[tuple[str, tuple[str, ...]], ...] = (),
    ) -> LoadedModel:
        """A model of a spec written out."""
        weights = f"made-up:1@{len(self._loads)}"
        spec = ModelSpec("made-up", "1", inputs, outputs, axes, state=state, variants=variants)

        def load() -> LoadedModel:
            module = make().to(self.device).eval().requires_grad_(requires_grad=False)
            buffers = dict(module.named_buffers())
            return LoadedModel(spec, module, self.device, "program", weights, {s.buffer: buffers[s.buffer] for s in state}, examples)

        self._loads[weights] = load
        return load()

    def in_capturer(self, work: Callable[[], T]) -> T:
        """Run in the capturer's thread."""
        return self.capturer.submit(work).result()

    def admit(self, model: LoadedModel, bucket: Bucket, variant: Variant = ()) -> tuple[Recording, Verdict]:
        """Judge, record, prove. Raises CaptureRefused."""

        def work() -> tuple[Recording, Verdict]:
            self.proof.judge(model, variant, self.lane)
            recording = self.backend.record(model, variant, bucket)
            return recording, self.proof.verify(model, variant, recording, self.lane)

        return self.in_capturer(work)

    def replay(self, recording: Recording, inputs: Mapping[str, torch.Tensor], shape: dict[str, int], padding: Padding) -> Outputs:
        """One request's reply."""
        part = Part({name: host(tensor) for name, tensor in inputs.items()}, shape)
        return self.lane.submit(lambda: recording.replay(Batch([part], shape), padding)[0]).result()


@contextmanager
def bench_on(device: str) -> Iterator[Bench]:
    """A bench on a device; its threads end with it."""
    backend = open_backend(device)
    lane, capturer = LaneThread(backend.lane, "lane"), LaneThread(backend.capturer, "capturer")
    yield Bench(backend, lane, capturer)
    capturer.close()
    lane.close()
    backend.close()
