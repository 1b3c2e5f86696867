"""What foresight of a change of traffic could bring at most: `policy_rhythm.py FOLDER`.

FOLDER (or $POLICY_DIR) holds scenarios as for policy_score.py. In `shift_code_conv` one kind of traffic follows the other within a second.
The policy as shipped, which notices, is set beside one that is told at that second, exactly, what the next hour brings: more than any
profile of the hours of a week can know. Prints net seconds saved since the change and the share of replayed steps, noticed / foreseen.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.policy_score import DEFAULT_FOLDER, SHIFT_S
from cachepolicy.cache import GraphCache
from cachepolicy.capture import PaybackAdmission
from cachepolicy.contest import histogram_of
from cachepolicy.costs import CostTable, Prices
from cachepolicy.eviction import MarginalSaving
from cachepolicy.recorded import MIB, read_prices, read_runs
from cachepolicy.simulate import Run, Simulation, known_costs, ladder_of, signature_of

SCENARIO = "shift_code_conv"
AFTER_S = (0.0, 10.0, 60.0, 600.0)  # and at the end
Seen = tuple[float, int, int]  # net seconds, steps, replayed steps


class Watched:
    """Recorded runs, with a call at some times."""

    def __init__(self, runs: Sequence[Run], times: Sequence[float], call: Callable[[float], None]) -> None:
        self._runs, self._times, self._call = runs, list(times), call

    def runs(self) -> Iterator[Run]:
        """As recorded."""
        times = iter([*self._times, float("inf")])
        due = next(times)
        for run in self._runs:
            while run.time >= due:
                self._call(due)
                due = next(times)
            yield run
        self._call(due)

    def spent(self, steps: int, seconds: float) -> None:
        """Recorded times stay as they are."""

    def stalled(self, seconds: float) -> bool:
        """Recorded times stay as they are."""
        return False


def drive(prices: Sequence[Prices], budget: int, runs: Sequence[Run], *, foreseen: bool) -> list[Seen]:
    """What was reached at each time."""
    costs = CostTable()
    for signature, known in known_costs(prices):
        costs.load(signature, known)
    admission = PaybackAdmission(costs)
    simulation = Simulation(prices, GraphCache(budget, MarginalSaving(admission.worth)), admission)
    simulation.introduce()
    seen: list[Seen] = []

    def look(time: float) -> None:
        outcome = simulation.outcome
        seen.append((outcome.net_s, outcome.steps, outcome.replayed))
        if time == SHIFT_S and foreseen:
            (sizes,) = histogram_of([run for run in runs if run.time >= SHIFT_S]).values()
            hours, ladder = (runs[-1].time - SHIFT_S) / 3600.0, ladder_of(len(prices[0].eager))
            buckets = tuple(ladder.buckets())
            admission.introduce(signature_of(0), ladder, time, {buckets[size - 1]: steps / hours for size, steps in sizes.items()})
            simulation.decide(time)

    simulation.drive(Watched(runs, [SHIFT_S + after for after in AFTER_S], look))
    return seen


def main() -> None:
    """A line for each budget."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("POLICY_DIR", DEFAULT_FOLDER))
    runs, prices = list(read_runs(folder / SCENARIO / "runs.csv.gz")), read_prices(folder / SCENARIO / "costs.json")
    for yard in json.loads((folder / "yardstick.json").read_text())[SCENARIO].values():
        if not isinstance(yard, dict):
            continue
        both = [drive(prices, yard["budget_mb"] * MIB, runs, foreseen=foreseen) for foreseen in (False, True)]
        told = []
        for name, at in (("10 s", 1), ("60 s", 2), ("600 s", 3), ("the end", -1)):
            since = [(seen[at][0] - seen[0][0], (seen[at][2] - seen[0][2]) / (seen[at][1] - seen[0][1])) for seen in both]
            told.append(f"{name}: {since[0][0]:.1f} / {since[1][0]:.1f} s, {since[0][1]:.1%} / {since[1][1]:.1%}")
        gain = both[1][-1][0] / both[0][-1][0] - 1.0
        print(f"{yard['budget_mb']} MB  {'; '.join(told)}; of the whole {gain:+.2%}")


if __name__ == "__main__":
    main()
