"""Score the shipped cache policy on recorded traffic: `make policy-score`, or `policy_score.py FOLDER`.

FOLDER (or $POLICY_DIR) holds scenarios (runs.csv.gz, costs.json), yardsticks and their scorer, score.py, which sees only the events that
the policy causes. Every row is reached from one default setting. Prints what is to be reached and what is; exits 1 where a row misses.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from cachepolicy.closed_loop import ClosedLoop, requests_of
from cachepolicy.contest import Policy, Profile, best_closed, histogram_of, run
from cachepolicy.recorded import MIB, ArenaShape, read_prices, read_runs
from cachepolicy.simulate import Outcome, Recorded, Run

DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / "shared" / "policy"

# Scenario, and by budget key the regret in per cent that is allowed against the best plan known
COLD = {
    "conv_x4": {"1": 0.5, "2": 0.5, "4": 0.5, "8": 0.5, "32": 0.5},
    "conv_x4_60s": {"1": 3.0, "4": 1.0, "64": 1.0},
    "shift_code_conv": {"1": 0.6, "2": 0.5, "4": 0.4, "8": 0.4},
    "encoder_conv": {"1": 0.5, "4": 0.5, "16": 0.5},
    "fleet8": {"2": 1.5, "4": 0.5, "8": 0.3, "16": 0.3},
}
RIGHT_PROFILE = {"1": 0.2, "2": 0.2, "4": 0.2, "8": 0.2, "32": 0.2}
WRONG_PROFILE = {"1": 1.5, "2": 1.0, "4": 1.0, "8": 1.0, "32": 1.0}
ARENA = {
    "conv_x4": {"48": 0.5, "56": 0.5, "80": 0.5},
    "encoder_conv": {"48": 0.5, "64": 0.5},
    "fleet8": {"80": 1.5, "160": 1.0, "240": 0.5, "320": 0.5},
}
CAPTURE_SCALES = (0.1, 4.0)
CLOSED_LOOP = ("1", "2", "4")
SHIFT_S = 3436.0  # where the code trace ends in shift_code_conv

Scorer = Callable[..., dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `reached` and `allowed` in per cent."""

    what: str
    reached: float
    allowed: float
    detail: str

    @property
    def good(self) -> bool:
        """Whether the target is reached."""
        return self.reached <= self.allowed


class Folder:
    """The scenarios, read once each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.yard = json.loads((path / "yardstick.json").read_text())
        self.yard_arena = json.loads((path / "yardstick_arena.json").read_text())
        spec = importlib.util.spec_from_file_location("official_score", path / "score.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.score: Scorer = module.score
        self._runs: dict[str, list[Run]] = {}

    def runs(self, scenario: str) -> list[Run]:
        """The recorded steps."""
        if scenario not in self._runs:
            self._runs[scenario] = list(read_runs(self.path / scenario / "runs.csv.gz"))
        return self._runs[scenario]

    def net_s(self, scenario: str, budget: int, policy: Policy, scale: float = 1.0, profile: Profile | None = None) -> tuple[float, str]:
        """What the official scorer says of the policy's events, private pools."""
        started = perf_counter()
        outcome = run(policy, read_prices(self.path / scenario / "costs.json", scale), budget * MIB, Recorded(self.runs(scenario)), profile)
        result = self.score(self.path / scenario, budget, [event.plain() for event in outcome.events], None, scale)
        return result["net_s"], _detail(outcome, perf_counter() - started)

    def net_arena_s(self, scenario: str, budget: int) -> tuple[float, str]:
        """The same where graphs of a model share an arena."""
        started = perf_counter()
        shape, scale = self.yard_arena["bytes_mb"], self.yard_arena["capture_scale"]
        arena = ArenaShape(shape["base"], shape["slope"], shape["per_graph"])
        prices = read_prices(self.path / scenario / "costs.json", scale, arena)
        outcome = run(Policy.PAYBACK, prices, budget * MIB, Recorded(self.runs(scenario)))
        result = self.score(self.path / scenario, budget, [event.plain() for event in outcome.events], shape, scale)
        return result["net_s"], _detail(outcome, perf_counter() - started)


def _detail(outcome: Outcome, seconds: float) -> str:
    return f"net {outcome.net_s:.2f} s, {outcome.count('capture')} captures, {outcome.decisions} decisions, {seconds:.1f} s"


def _regret(net_s: float, best_s: float) -> float:
    return 100.0 * (1.0 - net_s / best_s)


def rows(folder: Folder) -> Iterator[Row]:
    """The whole table."""
    for scenario, targets in COLD.items():
        for key, allowed in targets.items():
            yard = folder.yard[scenario][key]
            net_s, detail = folder.net_s(scenario, yard["budget_mb"], Policy.PAYBACK)
            yield Row(f"{scenario} k={key} cold", _regret(net_s, yard["best_known_s"]), allowed, detail)
    yield from profile_rows(folder)
    yard = folder.yard["conv_x20"]
    net_s, detail = folder.net_s("conv_x20", yard["2"]["budget_mb"], Policy.PAYBACK)
    yield Row("conv_x20 k=2 cold, lost of all-eager", -100.0 * net_s / yard["eager_s"], 0.1, detail)
    for scenario, targets in ARENA.items():
        for key, allowed in targets.items():
            net_s, detail = folder.net_arena_s(scenario, int(key))
            yield Row(f"{scenario} {key} MB arena", _regret(net_s, folder.yard_arena[scenario][key]["static_hindsight_s"]), allowed, detail)
    yield from scaled_rows(folder)
    for key in CLOSED_LOOP:
        yield closed_row(folder, key)


def profile_rows(folder: Folder) -> Iterator[Row]:
    """With the right profile, and with one of other traffic."""
    right = histogram_of(folder.runs("conv_x4"))
    wrong = histogram_of([run_ for run_ in folder.runs("shift_code_conv") if run_.time < SHIFT_S])
    for name, profile, targets in (("right", right, RIGHT_PROFILE), ("wrong", wrong, WRONG_PROFILE)):
        for key, allowed in targets.items():
            yard = folder.yard["conv_x4"][key]
            net_s, detail = folder.net_s("conv_x4", yard["budget_mb"], Policy.PAYBACK, profile=profile)
            yield Row(f"conv_x4 k={key} {name} profile", _regret(net_s, yard["best_known_s"]), allowed, detail)


def scaled_rows(folder: Folder) -> Iterator[Row]:
    """Cheaper and dearer captures must not turn the ranking: the policy stays ahead of every baseline."""
    for scale in CAPTURE_SCALES:
        for scenario, targets in COLD.items():
            key = next(iter(targets))
            budget = folder.yard[scenario][key]["budget_mb"]
            net_s, detail = folder.net_s(scenario, budget, Policy.PAYBACK, scale)
            others = {policy: folder.net_s(scenario, budget, policy, scale)[0] for policy in Policy if policy is not Policy.PAYBACK}
            best = max(others, key=lambda policy: others[policy])
            behind = 100.0 * (others[best] - net_s) / max(abs(net_s), 1e-9)
            yield Row(f"{scenario} k={key} captures x{scale}, behind {best}", behind, 0.0, detail)


def closed_row(folder: Folder, key: str) -> Row:
    """Mean time per token against the best fixed set."""
    scenario = "conv_x4"
    (prices,) = read_prices(folder.path / scenario / "costs.json")
    budget = folder.yard[scenario][key]["budget_mb"] * MIB
    requests = requests_of(folder.runs(scenario))
    fixed, best = best_closed(prices, budget, requests)
    loop = ClosedLoop(requests, len(prices.eager))
    outcome = run(Policy.PAYBACK, [prices], budget, loop)
    detail = f"{loop.mean_token_s * 1e3:.4f} against {best * 1e3:.4f} ms a token with {fixed}, {outcome.count('capture')} captures"
    return Row(f"{scenario} k={key} closed loop", 100.0 * (loop.mean_token_s / best - 1.0), 0.5, detail)


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    path = Path(arguments[0] if arguments else os.environ.get("POLICY_DIR", DEFAULT_FOLDER))
    if not (path / "score.py").exists():
        print(f"policy-score: {path} has no scenarios; name their folder: POLICY_DIR=… make policy-score")
        return 2
    missed = 0
    print(f"{'scenario':44s} {'reached':>9s} {'allowed':>9s}")
    for row in rows(Folder(path)):
        missed += not row.good
        print(f"{row.what:44s} {row.reached:8.3f}% {row.allowed:8.3f}%  {'ok  ' if row.good else 'MISS'}  {row.detail}", flush=True)
    print(f"{missed} missed" if missed else "all reached")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
