"""`graphcache profile`: the store through the eyes of an operator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.service.cli.conftest import Terminal
from tests.valkey import valkey

CONFIG = """
models:
  - name: encoder
    factory: service.models.demo:encoder
    axes: {batch: {max: 16}, seq: {max: 512}}
    variants: {adapter: [base, legal]}
  - name: mlp
    factory: service.models.demo:mlp
    axes: {batch: {max: 8}}
  - name: decode
    factory: service.models.demo:decode
    axes: {batch: {max: 2}}
    phase: decode
    state: [{buffer: keys, index_input: slots}]
  - name: undeclared
    factory: service.models.demo:mlp
"""
TRACE = "arrival_s,prompt_tokens,output_tokens\n0,100,2\n0.01,200,2\n0.02,400,1\n10,400,1\n"


@pytest.fixture
def here(tmp_path: Path) -> dict[str, Any]:
    """A configuration, a trace, and the options that name a store of its own."""
    (tmp_path / "worker.yaml").write_text(CONFIG)
    (tmp_path / "trace.csv").write_text(TRACE)
    return {
        "store": ("-c", str(tmp_path / "worker.yaml"), "--set", f"worker.state_dir={tmp_path / 'state'}"),
        "trace": str(tmp_path / "trace.csv"),
        "folder": tmp_path,
    }


def runs(decayed: float) -> int:
    """What was counted before it decayed, for at most one window."""
    return round(decayed * 1.06)


def seed(alone: Terminal, here: dict[str, Any], *models: str, store: tuple[str, ...] = ()) -> None:
    words = [word for model in models for word in ("--model", model)]
    answer = alone.run("profile", "seed-from-trace", here["trace"], *words, *here["store"], *store)
    assert answer.code == 0, answer.err


def test_a_store_seeded_from_a_trace_shows_its_shapes(alone: Terminal, here: dict[str, Any]) -> None:
    """One request for each arrival, sized as `replay-trace` does; a model with slots by the sequences that are under way."""
    seed(alone, here, "encoder", "mlp", "decode")
    told = alone.run("profile", "show", "--json", *here["store"]).json
    shapes = {w["model"]: {json.dumps(s["shape"]): runs(s["runs"]) for s in w["shapes"]} for w in told["workloads"]}
    assert shapes["encoder"] == {'{"batch": 1, "seq": 512}': 2, '{"batch": 1, "seq": 256}': 1, '{"batch": 1, "seq": 128}': 1}
    assert shapes["mlp"] == {'{"batch": 8}': 2, '{"batch": 4}': 2}
    assert shapes["decode"] == {'{"batch": 1}': 2, '{"batch": 2}': 2}
    (encoder,) = [w for w in told["workloads"] if w["model"] == "encoder"]
    assert (encoder["variant"], encoder["phase"], runs(encoder["runs"])) == ({"adapter": "base"}, "any", 4)
    page = alone.run("profile", "show", "encoder", *here["store"]).out
    assert "encoder[adapter=base]" in page
    assert "batch=1,seq=512" in page
    assert "mlp" not in page


def test_export_and_import_carry_a_profile_from_one_store_to_another(alone: Terminal, here: dict[str, Any]) -> None:
    """From SQLite to Valkey, the same runs; importing says what it added."""
    seed(alone, here, "mlp")
    out = here["folder"] / "profile.json"
    assert alone.run("profile", "export", "--out", str(out), *here["store"]).code == 0
    exported = json.loads(out.read_text())
    exported["costs"] = [
        {
            "environment": "e",
            "program": "p",
            "bucket": {"batch": 4},
            "eager_s": 1,
            "replay_s": 0.5,
            "capture_s": 2,
            "bytes": 1,
            "arena_bytes": 0,
        }
    ]
    out.write_text(json.dumps(exported))
    with valkey() as server:
        other = (*here["store"], "--set", f"profile_store={server.url}/?deployment=prod")
        answer = alone.run("profile", "import", str(out), "--json", *other)
        assert answer.json == {"runs": {"mlp": pytest.approx(4, rel=0.12)}, "costs": 1}
        told = alone.run("profile", "show", "--json", *other).json
        with server.client() as client:
            assert all(str(key).startswith("graphcache:{prod}:1:") for key in client.scan_iter())
    assert [w["runs"] for w in told["workloads"]] == [pytest.approx(4, rel=0.24)]
    assert [cost["bucket"] for cost in told["costs"]] == [{"batch": 4}]


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("show", "--set", "profile_store=none"), 2, "profile_store: is none"),
        (("show", "--set", "profile_store=redis://127.0.0.1:1"), 1, "profile store: redis://127.0.0.1:1: "),
        (("show", "--set", "profile_store=redis://a,b"), 2, "profile_store: names several hosts"),
        (("show", "--set", "profile_store=redis+sentinel://a"), 2, "profile_store: Sentinel needs the service's name"),
        (("show", "--set", "profile_store=redis://a?retries=3"), 2, "profile_store: retries: unknown"),
        (("import", "nowhere.json"), 2, "nowhere.json: No such file"),
        (("seed-from-trace", "TRACE", "--model", "nope"), 2, "--model: no model is named nope; there are encoder, mlp, decode, undeclared"),
        (("seed-from-trace", "TRACE", "--model", "undeclared"), 2, "undeclared: seed-from-trace needs the model's axes declared with max"),
        (("seed-from-trace", "TRACE", "--model", "encoder", "--variant", "adapter=x"), 2, "--variant: encoder has no variant adapter=x"),
    ],
)
def test_wrong_usage_is_one_line(alone: Terminal, here: dict[str, Any], words: tuple[str, ...], code: int, problem: str) -> None:
    """What, where, and never a password or a traceback."""
    answer = alone.run("profile", *(here["trace"] if word == "TRACE" else word for word in words), *here["store"])
    assert answer.code == code
    assert answer.err.startswith(f"graphcache: {problem}"), answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"traffic": {"now": 1}}', '{"traffic": {"now": 1, "seconds": 1, "workloads": []}, "costs": [3]}']
)
def test_a_wrong_document_names_the_place(alone: Terminal, here: dict[str, Any], text: str) -> None:
    """And nothing is written."""
    document = here["folder"] / "wrong.json"
    document.write_text(text)
    answer = alone.run("profile", "import", str(document), *here["store"])
    assert answer.code == 2
    assert answer.err.startswith(f"graphcache: {document}: ")
    assert alone.run("profile", "show", "--json", *here["store"]).json["workloads"] == []


def test_a_password_is_never_printed(alone: Terminal, here: dict[str, Any]) -> None:
    """Neither where the URL is wrong nor where nobody answers."""
    for url in ("redis://me:hunter2@127.0.0.1:1", "redis://me:hunter2@127.0.0.1:1/x", "memcached://me:hunter2@a", "redis://me:hunter2@a b"):
        answer = alone.run("profile", "show", *here["store"], "--set", f"profile_store={url}")
        assert answer.code in (1, 2)
        assert "hunter2" not in answer.out + answer.err
