"""A worker in this process, as `serve` puts it together, for tests that look inside."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import torch

from service.config import load
from service.jobs import Turn
from service.messages import InferReply, InferRequest, Parameter
from service.models.loaded import DATATYPES, TORCH_DTYPES, LoadedModel
from service.registry import ServedModel
from service.serving import Node, assemble
from service.tensors import HostTensor

MODULES = Path(__file__).parent / "modules"


@asynccontextmanager
async def running(device: str, text: str | None = None, sets: Sequence[str] = ()) -> AsyncIterator[Node]:
    """The demo models, or those of a configuration; closed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        path = None
        if text is not None:
            path = Path(folder) / "worker.yaml"
            path.write_text(text)
        config = load(path, [f"worker.device={device}", f"worker.state_dir={folder}/state", *sets], demo=text is None)
        node = assemble(config)
        try:
            for model in config.models:
                await node.admin.load_config(model)
            node.worker.prewarmed()
            yield node
        finally:
            await node.worker.drain()
            node.close()


def host(tensor: torch.Tensor) -> HostTensor:
    """A tensor as a request carries it."""
    tensor = tensor.detach().cpu().contiguous()
    return HostTensor(DATATYPES[tensor.dtype], tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy().tobytes())


def value(tensor: HostTensor) -> torch.Tensor:
    """A tensor of a reply, in memory of its own."""
    return torch.from_numpy(np.array(tensor.bits())).view(TORCH_DTYPES[tensor.datatype])


async def ask(node: Node, model: str, inputs: Mapping[str, torch.Tensor], parameters: Mapping[str, Parameter] | None = None) -> InferReply:
    """One request."""
    return await node.worker.infer(InferRequest(model, {k: host(v) for k, v in inputs.items()}, parameters=parameters or {}))


def served(node: Node, model: str) -> ServedModel:
    """The worker's own record of a model."""
    return node.worker.registry.get(model)


def eager(loaded: LoadedModel, inputs: Mapping[str, torch.Tensor], variant: Mapping[str, str] | None = None) -> dict[str, torch.Tensor]:
    """The model itself on the same values, on the CPU again afterwards. No batching, no padding, none of the worker's code."""
    with torch.no_grad():
        moved = {name: tensor.to(loaded.device) for name, tensor in inputs.items()}
        return {name: output.cpu() for name, output in loaded.forward(moved, tuple((variant or {}).items())).items()}


async def warm_all(node: Node, model: str) -> None:
    """Capture every bucket of every variant."""
    found = served(node, model)
    for variant in found.spec.all_variants():
        for bucket in reversed(list(found.ladder.buckets())):
            await node.admin.warm(model, "", bucket.as_dict(), dict(variant), force=True)


async def settled(node: Node) -> None:
    """All jobs of the capturer that are queued now are done."""
    await asyncio.wrap_future(node.capturer._thread.submit(lambda: None, Turn.POLICY))
