from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

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
    assert "clean batch=4 on cpu: capturable" in capsys.readouterr().out


REMEMBERS = CLEAN.replace("h = self.head(x)", "h = self.head(x)\n        self.last = h.mean()")
BATCH_MEAN = CLEAN.replace("h = self.head(x)", "h = self.head(x - x.mean(0))")
LEFT_TRAINING = CLEAN.replace("nn.Linear(8, 4)", "nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4))").replace(".eval()", "")


def report(tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, code: int) -> tuple[dict[str, Any], str]:
    """The doctor's JSON, and what it prints for people."""
    path = tmp_path / "model.py"
    path.write_text(source)
    assert main(["doctor", f"file:{path}", "--device", "cpu", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert main(["doctor", f"file:{path}", "--device", "cpu"]) == code
    return found, capsys.readouterr().out


def test_a_fact_about_the_whole_model_is_not_told_as_a_share_of_its_operations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """State in an attribute: no operation is to blame, and the hint says what to do with an attribute, not with a buffer."""
    found, text = report(tmp_path, capsys, REMEMBERS, 1)
    assert [blocker["what"] for blocker in found["blockers"]] == ["last changes from call to call"]
    assert "take it as an input" in found["blockers"][0]["hint"]
    assert "slots" not in found["blockers"][0]["hint"]
    assert "rules out every graph of this step" in text
    assert "keeps" not in text


def test_what_training_mode_does_is_told_as_training_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A norm that counts its batches is not called stateful: the cure is eval()."""
    found, _ = report(tmp_path, capsys, LEFT_TRAINING, 1)
    assert {(blocker["reason"], blocker["module"]) for blocker in found["blockers"]} == {("training_mode", "head.0"), ("training_mode", "")}
    assert all("eval()" in blocker["hint"] for blocker in found["blockers"])


def test_rows_that_depend_on_each_other_are_told_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A right graph, which serves exact sizes only."""
    found, text = report(tmp_path, capsys, BATCH_MEAN, 0)
    assert (found["serves"]["padding"], found["serves"]["rows_independent"]) == (None, False)
    assert "batches of exactly a bucket's size only" in text
    assert "rows: dependent" in text


def test_independent_rows_need_no_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Padded by value, merged."""
    found, _ = report(tmp_path, capsys, CLEAN, 0)
    assert found["serves"] == {"padding": "value", "rows_independent": True, "notes": []}


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
