from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from service.cli import main

BLOCKED = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        h = self.head(x)
        if h.mean().item() > 0:
            return torch.relu(h)
        return torch.tanh(h)


def make_model():
    return Model().eval()


def example_inputs(batch, seed):
    return {"x": torch.randn(batch, 8, generator=torch.Generator().manual_seed(seed))}
"""
CLEAN = BLOCKED.replace("h.mean().item() > 0", "h.shape[1] == 4")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file with one blocker, in line 13."""
    path = tmp_path / "branching model.py"
    path.write_text(BLOCKED)
    return path


def test_a_blocked_model_exits_with_1_and_shows_its_line(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For people: reason, operation, file and line, the code itself, and the hint."""
    assert main(["doctor", f"file:{model}", "--device", "cpu"]) == 1
    text = capsys.readouterr().out
    assert "not capturable: 1 blocker" in text
    assert "sync: aten._local_scalar_dense" in text
    assert f"{model}:13, in forward" in text
    assert "if h.mean().item() > 0:" in text
    assert "torch.where" in text


def test_json_tells_the_same_to_programs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the line as a number, the share it keeps out, and what each segment came to."""
    assert main(["doctor", f"file:{model}", "batch=3", "--device", "cpu", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["sizes"], found["capturable"]) == ("branching_model", {"batch": 3}, False)
    blocker = found["blockers"][0]
    assert (blocker["reason"], blocker["file"], blocker["line"]) == ("sync", str(model), 13)
    assert blocker["source"] == "if h.mean().item() > 0:"
    assert 0 < blocker["share"] < 1
    assert [segment["captured"] for segment in found["segments"]] == [True] * len(found["segments"])
    assert found["profit"] is None


def test_a_clean_model_exits_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model author's CI may lean on it."""
    path = tmp_path / "clean.py"
    path.write_text(CLEAN)
    assert main(["doctor", f"file:{os.path.relpath(path)}", "--device", "cpu"]) == 0
    assert "clean batch=2 on cpu: capturable" in capsys.readouterr().out


def test_a_configured_variant_is_examined(capsys: pytest.CaptureFixture[str]) -> None:
    """By name, with its variant and sizes, from the bundled configuration; with profit."""
    arguments = ["doctor", "--demo", "adapters", "batch=3", "--variant", "adapter=legal", "--device", "cpu", "--profit", "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["variant"], found["bucket"]) == ({"adapter": "legal"}, {"batch": 4})
    assert found["profit"]["cause"] in ("none", "device_bound", "padding", "small_region", "capture_unpaid")
    assert found["profit"]["measured_s"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mlp"], "give either a file (-c FILE) or --demo"),
        (["--demo", "nosuch"], "no model is named nosuch"),
        (["--demo", "mlp", "seq=3"], "seq: mlp has no such axis"),
        (["--demo", "mlp", "batch=65"], "above the largest bucket"),
        (["--demo", "adapters", "--variant", "adapter=none"], "--variant adapter=none: adapters has adapter: base, legal, medical"),
        (["--demo", "mlp", "--device", "cuda:99"], "cuda:99"),
        (["file:/nowhere/model.py"], "no such file"),
        (["file:model.py", "--demo"], "needs no configuration"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says what is wrong."""
    assert main(["doctor", *arguments]) == 2
    assert message in capsys.readouterr().err
