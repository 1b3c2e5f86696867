"""replay-trace against a real worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.config import load
from tests.service.cli.conftest import Terminal

PROMPTS = (10, 20, 40, 80, 160, 320, 640, 1280)
OUTPUTS = (1, 2, 3, 300, 5, 6, 7, 8)
DECODE = next(model for model in load(None, demo=True).models if model.name == "decode")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Eight arrivals, 10 ms apart."""
    path = tmp_path / "trace.csv"
    lines = (f"{i / 100},{prompt},{output}\n" for i, (prompt, output) in enumerate(zip(PROMPTS, OUTPUTS, strict=True)))
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(lines))
    return str(path)


def test_every_arrival_is_sent_and_accounted_for(terminal: Terminal, trace: str) -> None:
    """One request per arrival and model; a decoding loop makes each sequence's tokens, up to its context's end."""
    answer = terminal.infer("replay-trace", trace, "--model", "encoder", "--model", "mlp", "--model", "decode", "--json")
    assert answer.code == 0, answer.err
    models = answer.json["models"]
    assert list(models) == ["encoder", "mlp", "decode"]
    assert models["encoder"]["requests"] == models["encoder"]["rows"] == len(PROMPTS)
    assert models["mlp"]["requests"] == len(PROMPTS)
    assert models["mlp"]["rows"] > len(PROMPTS)
    positions = DECODE.inputs["positions"].range
    assert positions is not None
    context = positions[1] + 1
    assert models["decode"]["rows"] == sum(min(output, context) for output in OUTPUTS)
    assert models["decode"]["requests"] >= context
    replays = sum(model["paths"].get("replay", {"requests": 0})["requests"] for model in models.values())
    assert answer.json["hit_ratio"] == pytest.approx(replays / sum(model["requests"] for model in models.values()))
    for model in models.values():
        assert (model["errors"], model["shed"]) == (0, 0)
        assert sum(path["requests"] for path in model["paths"].values()) == model["requests"]
        assert sum(path["share"] for path in model["paths"].values()) == pytest.approx(1)
        assert model["hit_ratio"] == pytest.approx(model["paths"].get("replay", {"share": 0})["share"])
        assert sum(model["reasons"].values()) == model["paths"].get("eager", {"requests": 0})["requests"]
        assert all(0 < path["p50_ms"] <= path["p99_ms"] for path in model["paths"].values())


def test_time_and_pace_limit_what_is_sent(terminal: Terminal, trace: str) -> None:
    """At a tenth of the pace the arrivals are 100 ms apart, and 0.25 s have room for three."""
    answer = terminal.infer("replay-trace", trace, "--model", "mlp", "--speed", "0.1", "--seconds", "0.25", "--json")
    assert answer.json["models"]["mlp"]["requests"] == 3


def test_the_summary_says_what_an_arrival_became(terminal: Terminal, trace: str) -> None:
    """For people: a table by model and path, and the scaling in words."""
    told = terminal.infer("replay-trace", trace, "--model", "encoder").out
    assert "batch 1, seq = prompt tokens, where 640 (p95) or more become the axis' maximum" in told
    assert "hit ratio" in told
    assert "errors 0" in told


def test_a_model_that_does_not_exist_ends_it_at_once(terminal: Terminal, trace: str) -> None:
    """Exit code 1 with the model's name."""
    answer = terminal.infer("replay-trace", trace, "--model", "nosuch")
    assert answer.code == 1
    assert "nosuch" in answer.err
