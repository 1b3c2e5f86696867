"""The simulator: its clock, its bookkeeping, its files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from cachepolicy.closed_loop import ClosedLoop, Request, requests_of
from cachepolicy.contest import Policy, best_closed, best_fixed, cut, histogram_of, run, run_fixed
from cachepolicy.recorded import MIB, ArenaShape, read_histogram, read_prices, read_runs, write_events
from cachepolicy.simulate import Event, Recorded, Run
from tests.cachepolicy.worlds import flat


def test_fixed_set_saves_what_the_rule_says() -> None:
    """Smallest covering graph where faster than eager, captures charged, what is larger runs eagerly."""
    prices = [flat(8)]
    outcome = run_fixed(prices, 1000, Recorded([Run(0.0, 0, 2, 10), Run(1.0, 0, 4, 5), Run(2.0, 0, 8, 3)]), [(0, 4)])
    assert outcome.saved_s == pytest.approx(15 * (6e-3 - 3.08e-3))
    assert outcome.net_s == pytest.approx(outcome.saved_s - 0.3)
    assert (outcome.steps, outcome.replayed, outcome.rows, outcome.padding) == (18, 15, 40, 20)
    assert outcome.eager_s == pytest.approx(18 * 6e-3)
    assert outcome.events == [Event(0, "capture", 0, 4)]


def test_cold_policy_captures_between_steps() -> None:
    """Never before the first step, and it pays."""
    outcome = run(Policy.PAYBACK, [flat(8)], 1000, Recorded([Run(float(second), 0, 4, 200) for second in range(60)]))
    assert outcome.events[0].action == "capture"
    assert 0 < outcome.events[0].step < 100
    assert outcome.net_s > 30.0


def test_eager_policy_does_nothing() -> None:
    """The zero of all comparisons."""
    outcome = run(Policy.EAGER, [flat(8)], 1000, Recorded([Run(0.0, 0, 4, 200)]))
    assert outcome.net_s == 0.0
    assert outcome.events == []


def test_list_is_cut_to_the_budget() -> None:
    """Smallest first, each model in turn, in bytes of the set."""
    assert cut([flat(8, own=10), flat(8, own=10)], 35, lambda _: (1, 2, 4)) == [(0, 1), (1, 1), (0, 2)]
    assert cut([flat(8, own=1, top=10)], 42, lambda _: (1, 2, 4, 8)) == [(0, 1), (0, 2)]


def test_best_fixed_set_is_exact() -> None:
    """Two graphs for traffic at two sizes."""
    assert best_fixed(flat(32, own=10), 20, {5: 10_000.0, 30: 10_000.0}) == [5, 30]
    assert best_fixed(flat(32, own=10), 10, {5: 10_000.0, 30: 10_000.0}) == [30]


def test_closed_loop_serves_every_token_once() -> None:
    """However the steps fall."""
    requests = [Request(0.1 * number, 7 + number % 5) for number in range(40)]
    loop = ClosedLoop(requests, 8)
    run(Policy.PAYBACK, [flat(8)], 1000, loop)
    assert loop.tokens == sum(request.tokens for request in requests)


def test_closed_loop_runs_at_the_policys_speed() -> None:
    """A graph shortens the wait of each token by what a replay saves, and a capture holds up those who are there."""
    requests = [Request(0.0, 1000), Request(0.0, 1000)]
    eager, graph = ClosedLoop(requests, 8), ClosedLoop(requests, 8)
    run(Policy.EAGER, [flat(8)], 1000, eager)
    run_fixed([flat(8)], 1000, graph, [(0, 2)])
    assert eager.mean_token_s == pytest.approx(6e-3)
    assert graph.mean_token_s == pytest.approx(3.04e-3)


def test_best_fixed_set_of_a_closed_loop_is_found_in_it() -> None:
    """No row more or less would be faster; the histogram of eager traffic alone leads to another."""
    requests = [Request(0.05 * number, 150 + number % 100) for number in range(400)]
    sizes, token_s = best_closed(flat(64), 10, requests)
    reached = {}
    for size in (sizes[0] - 1, sizes[0], sizes[0] + 1):
        loop = ClosedLoop(requests, 64)
        run_fixed([flat(64)], 10, loop, [(0, size)])
        reached[size] = loop.mean_token_s
    assert token_s == min(reached.values()) == reached[sizes[0]]
    eager = ClosedLoop(requests, 64)
    run_fixed([flat(64)], 10, eager, [])
    assert best_fixed(flat(64), 10, eager.steps) != sizes


def test_no_more_rows_join_than_the_ladder_has() -> None:
    """The others wait."""
    loop = ClosedLoop([Request(0.0, 10) for _ in range(20)], 8)
    assert max(step.size for step in loop.at_eager_speed([1.0] * 8)) == 8


def test_requests_make_the_runs_they_were_read_from() -> None:
    """Rows that come are arrivals, rows that go have had their tokens."""
    runs = [Run(0.0, 0, 2, 10), Run(1.0, 0, 3, 5), Run(2.0, 0, 1, 4)]
    requests = requests_of(runs)
    assert sum(request.tokens for request in requests) == 2 * 10 + 3 * 5 + 4
    assert sorted(request.ready for request in requests) == [0.0, 0.0, 1.0]


def test_files_are_read_and_written_as_described(tmp_path: Path) -> None:
    """Runs, costs with and without an arena, histograms, events."""
    with gzip.open(tmp_path / "runs.csv.gz", "wt") as file:
        file.write("t_s,model,b,n\n0.500,0,2,9\n1.250,1,3,4\n")
    runs = list(read_runs(tmp_path / "runs.csv.gz"))
    assert runs == [Run(0.5, 0, 2, 9), Run(1.25, 1, 3, 4)]
    assert histogram_of(runs) == {0: {2: 9.0}, 1: {3: 4.0}}
    (tmp_path / "costs.json").write_text(
        json.dumps({"models": [{"E_ms": [6, 6, 7], "G_ms": [3, 3, 4], "C_ms": [300, 310, 320], "MB": [9, 10, 11]}]})
    )
    (private,) = read_prices(tmp_path / "costs.json", 0.5)
    assert list(private.eager) == [0.006, 0.007]
    assert list(private.capture) == [0.155, 0.16]
    assert private.bytes([0, 1]) == 21 * MIB
    (arena,) = read_prices(tmp_path / "costs.json", 1.0, ArenaShape.parse("34,0.35,2"))
    assert arena.bytes([0, 1]) == (35 + 4) * MIB
    (tmp_path / "profile.json").write_text('{"0": {"4": 100}}')
    assert read_histogram(tmp_path / "profile.json") == {0: {4: 100.0}}
    write_events(tmp_path / "events.jsonl", [Event(3, "capture", 0, 4), Event(9, "rebuild", 0)])
    assert [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()] == [
        {"step": 3, "op": "capture", "model": 0, "size": 4},
        {"step": 9, "op": "rebuild", "model": 0},
    ]
