from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.export import Dim, export, save

from service.errors import ConfigError
from service.models.loaded import LoadedModel
from service.models.spec import AxisSpec, InputSpec, OutputSpec
from service.tensors import Datatype

Load = Callable[..., LoadedModel]


class Scored(nn.Module):
    """A keyword-only input, a buffer that changes, and outputs as a dict."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, *, mask: Tensor) -> dict[str, Tensor]:
        """X [batch, seq, 8], mask [batch, seq]."""
        self.calls.add_(1)
        return {"y": self.head(x) * mask.unsqueeze(-1), "calls": self.calls + x.sum(dim=(1, 2)) * 0}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """`scored.pt2` with two dynamic axes."""
    batch, seq = Dim("batch", max=16), Dim("seq", min=4, max=128)
    shapes = {"x": {0: batch, 1: seq}, "mask": {0: batch, 1: seq}}
    program = export(Scored().eval(), (torch.randn(3, 5, 8),), {"mask": torch.ones(3, 5)}, dynamic_shapes=shapes)
    save(program, tmp_path / "scored.pt2")
    return tmp_path


def test_a_program_tells_its_inputs_axes_and_limits(load: Load, archive: Path) -> None:
    """Datatypes, shapes and ranges come from the archive; one symbol in two inputs is one axis; the batch is the first dimension."""
    spec = load(archive, program="scored.pt2").spec
    assert spec.inputs == (
        InputSpec("x", Datatype.FP32, ("batch", "x_1", 8)),
        InputSpec("mask", Datatype.FP32, ("batch", "x_1")),
    )
    assert spec.outputs == (OutputSpec("y", Datatype.FP32, ("batch", "x_1", 4)), OutputSpec("calls", Datatype.FP32, ("batch",)))
    assert spec.axes == (AxisSpec("batch", 16, (1, 2, 4, 8, 16)), AxisSpec("x_1", 128, (1, 2, 4, 8, 16, 32, 64, 128)))


def test_a_program_runs_by_keywords_from_its_first_state(load: Load, archive: Path) -> None:
    """Inputs go by name whatever they were at export, and trial runs did not move the buffers of the program that serves."""
    model = load(archive, program="scored.pt2", inputs={"x": {"shape": ["batch", "seq", 8]}, "mask": {"shape": ["batch", "seq"]}})
    assert [axis.name for axis in model.spec.axes] == ["batch", "seq"]
    x, mask = torch.randn(1, 6, 8), torch.tensor([[1.0, 1.0, 0.0, 0.0, 0.0, 0.0]])
    with torch.no_grad():
        outputs = model.forward({"mask": mask, "x": x}, ())
    weight, bias = (model.module.state_dict()[f"program.head.{name}"] for name in ("weight", "bias"))
    torch.testing.assert_close(outputs["y"], (x @ weight.T + bias) * mask.unsqueeze(-1))
    assert outputs["calls"].tolist() == [1.0]
    assert not any(part.training for part in model.module.modules())


def test_a_program_takes_other_weights(load: Load, archive: Path) -> None:
    """Named as in the archive's own state, under `program.`."""
    first = load(archive, program="scored.pt2")
    save_file({name: torch.zeros_like(tensor) for name, tensor in first.module.state_dict().items()}, archive / "zero.safetensors")
    second = load(archive, program="scored.pt2", weights="zero.safetensors")
    assert second.program == first.program
    assert not second.forward({"x": torch.ones(1, 4, 8), "mask": torch.ones(1, 4)}, ())["y"].any()


class Nested(nn.Module):
    def forward(self, x: Tensor, options: dict[str, Tensor]) -> Tensor:
        """X and a dict of tensors."""
        return x + options["bias"]


class Scaled(nn.Module):
    def forward(self, x: Tensor, times: int) -> Tensor:
        """X and a plain number."""
        return x * times


@pytest.mark.parametrize(
    ("module", "arguments", "problem"),
    [
        (Nested(), (torch.ones(2, 3), {"bias": torch.ones(3)}), "takes nested arguments; only plain tensors can be served"),
        (Scaled(), (torch.ones(2, 3), 5), "takes arguments that are not tensors"),
    ],
)
def test_a_program_of_other_arguments_is_refused(
    load: Load, tmp_path: Path, module: nn.Module, arguments: tuple[object, ...], problem: str
) -> None:
    """Requests carry tensors by name and nothing else."""
    save(export(module, arguments), tmp_path / "other.pt2")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, program="other.pt2")
    assert str(caught.value) == f"models[1] (m).program: {problem}"


def test_what_is_no_archive_is_named(load: Load, tmp_path: Path) -> None:
    """A missing file and one of other content."""
    with pytest.raises(ConfigError, match=r"^models\[1\] \(m\)\.program: none\.pt2: no such file$"):
        load(tmp_path, program="none.pt2")
    (tmp_path / "text.pt2").write_text("hello", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^models\[1\] \(m\)\.program: reading text\.pt2 raised "):
        load(tmp_path, program="text.pt2")


RECORD = """
import sys
from pathlib import Path
import torch
from service.backends.cpu import CpuBackend
from service.config import ModelConfig
from service.models.loading import load_model

path = Path(sys.argv[1])
model = load_model(
    ModelConfig(name="m", program=path.name), device=torch.device("cpu"), allowed=(), generation=1, base_dir=path.parent
)
with CpuBackend().capturer() as _:
    print(CpuBackend().record(model, (), next(iter(model.spec.ladder.buckets()))).nodes)
"""


def test_a_program_is_recorded_without_a_warning(tmp_path: Path) -> None:
    """Copying it, to record on the copy, makes tree specs anew in a way that torch itself deprecates."""
    path = tmp_path / "m.pt2"
    save(export(nn.Linear(4, 2).eval(), (torch.randn(3, 4),), dynamic_shapes={"input": {0: Dim("batch", max=16)}}), path)
    done = subprocess.run([sys.executable, "-c", RECORD, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0
    assert "Warning" not in done.stderr
