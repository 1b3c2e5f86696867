"""The commands against a real worker with the demo models. Tests share it, so each keeps to shapes of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.service.cli.conftest import Terminal

INFER_KEYS = set("model path reason detail bucket padding_ratio batch_rows parts queue_ms execute_ms total_ms key outputs".split())
GRAPH_KEYS = set("model variant bucket state hits saved_s bytes arena last_used_s pinned reason".split())
EXPLAIN_KEYS = set("model path reason detail bucket padding_ratio predicted_ms hint".split())


def test_each_answer_is_what_explain_said_right_before(terminal: Terminal) -> None:
    """Eagerly with its reason first, by replay once the graph is there; bucket and padding come with it."""
    request = ("chain32", "batch=3")
    told = terminal.admin("explain", *request, "--json").json
    assert set(told) >= EXPLAIN_KEYS
    first = terminal.infer("infer", *request, "--random", "--json").json
    assert set(first) >= INFER_KEYS
    assert (first["path"], first["reason"]) == (told["path"], told["reason"]) == ("eager", "not_captured")
    assert first["outputs"] == {"y": {"datatype": "FP32", "shape": [3, 1024]}}
    terminal.admin("warm", *request, "--force")
    told = terminal.admin("explain", *request, "--json").json
    served = terminal.infer("infer", *request, "--random", "--json").json
    assert (served["path"], served["reason"]) == (told["path"], told["reason"]) == ("replay", None)
    assert served["bucket"] == {"batch": 4} == told["bucket"]
    assert served["padding_ratio"] == pytest.approx(1 / 3) == pytest.approx(told["padding_ratio"])
    assert served["total_ms"] >= served["execute_ms"] > 0
    assert served["key"]


def test_sizes_of_several_axes_choose_one_bucket(terminal: Terminal) -> None:
    """The smallest bucket on each axis covers the request, and outputs are cut back to it."""
    served = terminal.infer("infer", "encoder", "--random", "batch=3", "seq=17", "--json").json
    assert served["bucket"] == {"batch": 4, "seq": 32}
    assert served["outputs"]["embedding"]["shape"][0] == 3


def test_infer_tells_people_the_same(terminal: Terminal) -> None:
    """Path, reason, bucket and shapes in words."""
    told = terminal.infer("infer", "mlp", "--random", "batch=61").out
    assert told.startswith("mlp:1 served by ")
    assert "y: FP32 [61, 256]" in told


def test_arrays_go_in_and_come_out_as_files(terminal: Terminal, tmp_path: Path) -> None:
    """--npz sends named arrays, --out keeps the outputs: rows answer alike in any batch."""
    x = np.random.default_rng(5).standard_normal((5, 256), np.float32)
    results = []
    for rows in (x, x[2:3]):
        np.savez(tmp_path / "in.npz", x=rows)
        answer = terminal.infer("infer", "mlp", "--npz", str(tmp_path / "in.npz"), "--out", str(tmp_path / "out.npz"))
        assert answer.code == 0
        results.append(np.load(tmp_path / "out.npz")["y"])
    assert results[0].shape == (5, 256)
    np.testing.assert_allclose(results[1][0], results[0][2], rtol=1e-4, atol=1e-5)


def test_warm_pin_and_evict_act_on_one_bucket_of_one_variant(terminal: Terminal) -> None:
    """What they did is in the list of graphs; a pinned graph stays."""
    bucket = ("adapters", "batch=2", "--param", "adapter=medical")
    warmed = terminal.admin("warm", *bucket, "--force", "--json").json
    assert set(warmed) >= GRAPH_KEYS
    assert (warmed["state"], warmed["variant"], warmed["bucket"]) == ("serving", "adapter=medical", {"batch": 2})
    assert terminal.admin("pin", *bucket, "--json").json["pinned"]
    assert terminal.admin("evict", *bucket, "--json").json == {"evicted": 0}
    listed = terminal.admin("graphs", "adapters", "--json").json
    assert [(graph["variant"], graph["bucket"], graph["pinned"]) for graph in listed] == [("adapter=medical", {"batch": 2}, True)]
    assert not terminal.admin("unpin", *bucket, "--json").json["pinned"]
    assert terminal.admin("evict", *bucket).out == "evicted 1 graph\n"
    told = terminal.admin("explain", *bucket, "--json").json
    assert (told["path"], told["reason"]) == ("eager", "evicted")


def test_plan_says_which_buckets_the_traffic_wants(terminal: Terminal, tmp_path: Path) -> None:
    """Ladder, order, the usual lists beside it, sessions, and a picture; before there is traffic it says so."""
    assert "no traffic" in terminal.admin("plan", "decode").err
    for batch in (40, 40, 33):
        terminal.infer("infer", "chain32", "--random", f"batch={batch}")
    picture = tmp_path / "plan.png"
    plan = terminal.admin("plan", "chain32", "--session-bytes", "1KiB", "--plot", str(picture), "--json").json
    assert set(plan["ladder"]) == {"batch"}
    assert {"batch": 33} in [entry["size"] for entry in plan["histogram"]]
    assert [other["name"] for other in plan["alternatives"]] == ["best", "configured", "powers of two", "vLLM's default"]
    assert plan["sessions_displaced"] == plan["alternatives"][0]["bytes"] / 1024
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "in the order of prewarming" in terminal.admin("plan", "chain32").out


def test_graphs_prints_a_line_for_each(terminal: Terminal) -> None:
    """Model, bucket and state in a table that is not wrapped."""
    terminal.admin("warm", "chain32", "batch=1", "--force")
    lines = terminal.admin("graphs", "chain32").out.splitlines()
    assert lines[0].split()[:4] == ["model", "variant", "bucket", "state"]
    assert any("chain32:1" in line and "batch=1" in line and "serving" in line for line in lines[1:])


def test_a_mode_holds_until_it_is_changed_or_expires(terminal: Terminal) -> None:
    """Switched off, requests say `disabled`; `--for` gives it an end; an unknown mode is named."""
    state = terminal.admin("mode", "adapters", "none", "--for", "10m", "--json").json
    assert (state["mode"], state["origin"]) == ("none", "rpc")
    assert state["until"] - state["since"] == pytest.approx(600, abs=1)
    assert terminal.infer("infer", "adapters", "--random", "batch=1", "--json").json["reason"] == "disabled"
    assert terminal.admin("mode", "adapters", "auto").out == "adapters: mode auto\n"
    legal = ("mode", "adapters", "auto", "--param", "adapter=legal")
    assert terminal.admin(*legal).out == "adapters adapter=legal: mode auto\n"
    assert terminal.admin(*legal, "--json").json["variant"] == {"adapter": "legal"}
    assert terminal.infer("infer", "adapters", "--random", "batch=1", "--json").json["reason"] != "disabled"
    answer = terminal.admin("mode", "adapters", "piecewise")
    assert answer.code == 1
    assert "piecewise" in answer.err


def test_a_variant_is_chosen_by_parameter(terminal: Terminal, tmp_path: Path) -> None:
    """Two adapters answer differently; one that does not exist is refused by name."""
    outputs = []
    for adapter in ("base", "legal"):
        path = tmp_path / f"{adapter}.npz"
        terminal.infer("infer", "adapters", "--random", "batch=1", "--param", f"adapter={adapter}", "--out", str(path))
        outputs.append(np.load(path)["y"])
    assert not np.array_equal(*outputs)
    answer = terminal.infer("infer", "adapters", "--random", "batch=1", "--param", "adapter=poetry")
    assert answer.code == 1
    assert "INVALID_ARGUMENT" in answer.err
    assert "poetry" in answer.err
    answer = terminal.infer("infer", "adapters", "--random", "batch=1", "--param", "adaptor=legal")
    assert answer.code == 1
    assert "parameter 'adaptor': unknown; adapters takes adapter" in answer.err


def test_files_that_hold_no_named_arrays_are_one_line(terminal: Terminal, tmp_path: Path) -> None:
    """Neither a single array nor garbage."""
    single, garbage = tmp_path / "single.npz", tmp_path / "garbage.npz"
    with single.open("wb") as file:
        np.save(file, np.zeros(3))
    garbage.write_bytes(b"garbage")
    for path in (single, garbage):
        answer = terminal.infer("infer", "mlp", "--npz", str(path))
        assert (answer.code, answer.err) == (2, f"graphcache: {path}: is no .npz file\n")


def test_a_request_too_large_for_the_wire_is_one_line(terminal: Terminal) -> None:
    """By the protocol's limit before anything is allocated, or by the worker's own."""
    answer = terminal.infer("infer", "mlp", "--random", f"batch={10**17}")
    assert answer.code == 2
    assert answer.err.startswith("graphcache: input 'x': [100000000000000000, 256] is more than a gRPC message can carry")
    answer = terminal.infer("infer", "mlp", "--random", "batch=70000")
    assert answer.code == 1
    assert "larger than the worker's worker.limits.message" in answer.err


def test_a_deadline_that_has_passed_is_an_error(terminal: Terminal) -> None:
    """Exit code 1 and the status in one line."""
    answer = terminal.infer("infer", "mlp", "--random", "batch=1", "--deadline", "1us")
    assert answer.code == 1
    assert "DEADLINE_EXCEEDED" in answer.err
    assert answer.err.count("\n") == 1


def test_an_unknown_model_is_an_error(terminal: Terminal) -> None:
    """Exit code 1 and its name, on both ports."""
    for answer in (
        terminal.infer("infer", "nosuch", "--random", "batch=1"),
        terminal.admin("explain", "nosuch", "batch=1"),
        terminal.admin("warm", "nosuch", "batch=1"),
    ):
        assert answer.code == 1
        assert "NOT_FOUND" in answer.err
        assert "nosuch" in answer.err


def test_a_budget_is_resized_live(terminal: Terminal) -> None:
    """The worker answers with the budget in force."""
    assert terminal.admin("budget", "300MiB", "--json").json["budget_bytes"] == 300 << 20
    assert terminal.admin("budget", "512MiB").out.startswith("budget 512 MiB, used ")
    answer = terminal.admin("budget", "1000TiB")
    assert answer.code == 1
    assert "must not exceed the device's memory" in answer.err
