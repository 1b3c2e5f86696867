"""Models on a CUDA device: loading, and what the demo's decode step promises to whoever records it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export, save

from service.config import ModelConfig, load
from service.models import demo
from service.models.loading import load_model
from service.models.values import made_up

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda:0")


def test_every_demo_model_loads_and_runs_on_the_device() -> None:
    """The bundled configuration is served as it is on a GPU: parameters, buffers and outputs are there."""
    config = load(None, demo=True)
    for model in config.models:
        loaded = load_model(model, device=CUDA, allowed=config.worker.allowed_factories, generation=1, base_dir=config.base_dir)
        assert {tensor.device for tensor in (*loaded.module.parameters(), *loaded.module.buffers())} == {CUDA}
        inputs = made_up(loaded.spec.inputs, loaded.spec.state, {axis.name: 4 for axis in loaded.spec.axes}, seed=2)
        for variant in loaded.spec.all_variants():
            with torch.no_grad():
                outputs = loaded.forward({name: tensor.to(CUDA) for name, tensor in inputs.items()}, variant)
            assert {tensor.device for tensor in outputs.values()} == {CUDA}


class Placed(nn.Module):
    """Makes a tensor of its own in forward, which an export fixes to the device it ran on."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, 4] → [batch, 2]."""
        y: Tensor = self.head(x) + torch.arange(2, dtype=x.dtype, device=x.device)
        return y


def test_a_program_exported_on_the_cpu_runs_on_the_device(tmp_path: Path) -> None:
    """Weights and the tensors that the program makes are moved with it."""
    module = Placed().eval()
    program = export(module, (torch.randn(3, 4),), dynamic_shapes={"x": {0: Dim("batch", max=8)}})
    save(program, tmp_path / "placed.pt2")
    loaded = load_model(ModelConfig(name="placed", program="placed.pt2"), device=CUDA, allowed=(), generation=1, base_dir=tmp_path)
    x = torch.randn(5, 4)
    with torch.no_grad():
        torch.testing.assert_close(loaded.forward({"x": x.to(CUDA)}, ())["output"].cpu(), module(x), rtol=1e-3, atol=1e-4)


def test_a_recorded_decode_step_equals_eager_and_leaves_foreign_slots_alone() -> None:
    """Twelve steps of three sequences in a graph of eight rows: same tokens and logits as eager, other slots the same to the bit."""
    step, reference = demo.decode().to(CUDA), demo.decode().to(CUDA)
    foreign = torch.randn(step.keys.shape[1:], device=CUDA)
    for cache in (step.keys, step.values):
        cache[7] = foreign
    static = {name: torch.zeros(8, dtype=torch.int64, device=CUDA) for name in ("tokens", "slots", "positions")}
    static["slots"].fill_(64)  # scratch
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            step(**static)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        outputs = step(**static)
        graph.capture_end()
        tokens = torch.tensor([5, 6, 7], device=CUDA)
        for position in range(12):
            row = {"tokens": tokens, "slots": torch.tensor([9, 0, 33], device=CUDA), "positions": torch.full((3,), position, device=CUDA)}
            for name, values in row.items():
                static[name][:3] = values
            graph.replay()
            expected = reference(**row)
            torch.testing.assert_close(outputs["logits"][:3], expected["logits"], rtol=1e-3, atol=1e-3)
            assert torch.equal(outputs["next_token"][:3], expected["next_token"])
            tokens = expected["next_token"]
    stream.synchronize()
    assert torch.equal(step.keys[7], foreign)
    assert torch.equal(step.values[7], foreign)
    untouched = [slot for slot in range(64) if slot not in (7, 9, 0, 33)]
    assert not step.keys[untouched].any()
