"""`graphcache simulate`: policies beside each other on recorded steps and traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.service.cli.conftest import Terminal

ROWS = "".join(f"{second}.000,0,{4 if second % 3 else 9},200\n" for second in range(60))


@pytest.fixture
def steps(tmp_path: Path) -> list[str]:
    """A minute of steps of two sizes, with costs."""
    with gzip.open(tmp_path / "runs.csv.gz", "wt") as file:
        file.write("t_s,model,b,n\n" + ROWS)
    sizes = range(17)
    model = {
        "E_ms": [6.0 for _ in sizes],
        "G_ms": [3.0 + 0.1 * size for size in sizes],
        "C_ms": [300.0 for _ in sizes],
        "MB": [10 for _ in sizes],
    }
    (tmp_path / "costs.json").write_text(json.dumps({"models": [model]}))
    return ["--runs", str(tmp_path / "runs.csv.gz"), "--costs", str(tmp_path / "costs.json")]


def test_shipped_policy_is_listed_beside_all_others(alone: Terminal, steps: list[str]) -> None:
    """Net saving first; the eager run is the zero."""
    found = {line["policy"]: line for line in alone.run("simulate", *steps, "--budget-mb", "10", "--json").json}
    assert set(found) == {"payback", "eager", "lru", "lfu", "gdsf", "powers-of-two", "vllm"}
    assert found["eager"]["net_s"] == 0.0
    assert found["payback"]["net_s"] > found["powers-of-two"]["net_s"]
    assert found["payback"]["steps"] == 12_000
    assert "payback" in alone.run("simulate", *steps, "--budget-mb", "10").out


def test_events_are_written_in_the_scorers_form(alone: Terminal, steps: list[str], tmp_path: Path) -> None:
    """One JSON object a line, captures that the summary counts."""
    file = tmp_path / "events.jsonl"
    (line,) = alone.run("simulate", *steps, "--budget", "20MiB", "--policy", "payback", "--events", str(file), "--json").json
    events = [json.loads(text) for text in file.read_text().splitlines()]
    assert sum(event["op"] == "capture" for event in events) == line["captures"] > 0
    assert all(set(event) == {"step", "op", "model", "size"} for event in events)


def test_profile_is_captured_before_the_first_step(alone: Terminal, steps: list[str], tmp_path: Path) -> None:
    """What it promises."""
    (tmp_path / "profile.json").write_text('{"0": {"4": 8000, "9": 4000}}')
    file = tmp_path / "events.jsonl"
    alone.run(
        "simulate", *steps, "--budget-mb", "20", "--policy", "payback", "--profile", str(tmp_path / "profile.json"), "--events", str(file)
    )
    assert {(event["step"], event["size"]) for event in map(json.loads, file.read_text().splitlines())} >= {(0, 4), (0, 9)}


def test_closed_loop_tells_the_time_of_a_token(alone: Terminal, steps: list[str]) -> None:
    """Shorter with graphs than without."""
    found = {line["policy"]: line for line in alone.run("simulate", *steps, "--budget-mb", "20", "--closed-loop", "--json").json}
    assert found["payback"]["token_ms"] < found["eager"]["token_ms"] == pytest.approx(6.0)


def test_trace_of_requests_is_simulated_with_the_costs_of_a_decode_step(alone: Terminal, tmp_path: Path) -> None:
    """No file of costs is needed; arenas are."""
    (tmp_path / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{0.2 * n:.1f},100,200\n" for n in range(100)))
    words = ("simulate", str(tmp_path / "trace.csv"), "--budget", "64MiB", "--policy", "payback", "--json")
    (private,) = alone.run(*words).json
    (arena,) = alone.run(*words, "--arena", "34,0.35,2", "--capture-scale", "0.1").json
    assert private["net_s"] > 0.0
    assert arena["net_s"] > 0.0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "give either TRACE or --runs FILE"),
        (("--runs", "nowhere.csv.gz"), "give either --budget SIZE or --budget-mb N"),
        (("--runs", "nowhere.csv.gz", "--budget-mb", "1"), "nowhere.csv.gz: No such file"),
        (("--runs", "nowhere.csv.gz", "--budget-mb", "1", "--arena", "34"), "--arena: "),
        (("--runs", "r", "--budget-mb", "1", "--events", "e"), "--events takes one --policy"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(alone: Terminal, words: tuple[str, ...], problem: str) -> None:
    """It says what is wrong and where."""
    answer = alone.run("simulate", *words)
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert problem in answer.err


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("nan,0,1,5", "line 2: t_s: nan is not a number from 0"),
        ("0,1,1,5", "line 2: model: 1 is not a number from 0 to 0"),
        ("0,0,17,5", "line 2: b: 17 is not a number from 1 to 16"),
        ("0,0,1.5,5", "line 2: b: 1.5 is not a whole number"),
        ("0,0,1,-5", "line 2: n: -5 is not a number from 0"),
        ("0,0,1,1e30", "line 2: n: 1e30 is not a number from 0"),
        ("9,0,1,5\n1,0,1,5", "line 3: t_s: 1 is not a number from 9"),
        ("0,0", "line 2: b: None is not a number"),
        ("", "has no runs"),
    ],
)
def test_runs_that_make_no_sense_are_named_by_line(alone: Terminal, steps: list[str], row: str, problem: str) -> None:
    """In one line, with what would be right."""
    with gzip.open(steps[1], "wt") as file:
        file.write("t_s,model,b,n\n" + row)
    answer = alone.run("simulate", *steps, "--budget-mb", "10")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert f"runs.csv.gz: {problem}" in answer.err


@pytest.mark.parametrize(
    ("costs", "problem"),
    [
        ("[1]", "not a JSON object"),
        ('{"models": []}', "has no models"),
        ('{"models": [5]}', "model 0: not an object"),
        ('{"models": [{"E_ms": [0, NaN]}]}', "model 0: E_ms of size 1: nan is not a number"),
        ('{"models": [{"E_ms": [0, -1]}]}', "model 0: E_ms of size 1: -1 is not a number"),
        ('{"models": [{"E_ms": [0, 1], "G_ms": [0, 1, 2], "C_ms": [0, 1], "MB": [0, 1]}]}', "have to be equally long"),
    ],
)
def test_costs_that_make_no_sense_are_named(alone: Terminal, steps: list[str], costs: str, problem: str) -> None:
    """By model, column and size."""
    Path(steps[3]).write_text(costs)
    answer = alone.run("simulate", *steps, "--budget-mb", "10")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert problem in answer.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--arena", "inf,1,1"), "--arena: BASE: inf is not a number"),
        (("--capture-scale", "nan"), "is not a finite number"),
        (("--budget-mb", "inf"), "is not a finite number"),
        (("--profile", "PROFILE"), "model 0: size: 99 is not a number from 1 to 16"),
    ],
)
def test_options_that_make_no_sense_are_named(
    alone: Terminal, steps: list[str], tmp_path: Path, words: tuple[str, str], problem: str
) -> None:
    """And no traceback is shown."""
    (tmp_path / "PROFILE").write_text('{"0": {"99": 5}}')
    budget = () if "--budget-mb" in words else ("--budget-mb", "10")
    answer = alone.run("simulate", *steps, *budget, *(word.replace("PROFILE", str(tmp_path / "PROFILE")) for word in words))
    assert answer.code == 2
    assert "Traceback" not in answer.err
    assert problem in answer.err
