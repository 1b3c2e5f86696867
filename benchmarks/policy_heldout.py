"""The shipped cache policy on traffic that nobody set it up for, beside what others do: `policy_heldout.py [FOLDER]`.

FOLDER holds request traces (azure_*.csv.gz: arrival, prompt and output tokens). Decode steps are made of them at 4 ms a step, for one
model and for fleets of 20 and 86 whose popularity falls as Zipf's; costs are drawn per model. Prints the net saving of each policy as a
share of the best fixed set in hindsight (for fleets: of the best that one price per byte finds). Closed loops: how fast tokens come,
as a share of the best fixed set's speed.
"""

from __future__ import annotations

import csv
import gzip
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from random import Random

from cachepolicy.closed_loop import ClosedLoop, Request
from cachepolicy.contest import Policy, best_closed, histogram_of, run
from cachepolicy.costs import Prices
from cachepolicy.demand import Demand, Outlook
from cachepolicy.ladder import Pricing
from cachepolicy.simulate import Recorded, Run, ladder_of

DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"
MIB = 1 << 20
LARGEST = 128
STEP_S = 0.004
SECONDS = 900.0
SCALES = (0.1, 1.0, 4.0)
OTHERS = (Policy.LRU, Policy.LFU, Policy.GDSF)


def requests(path: Path, times: int, begin: float) -> list[Request]:
    """A quarter of an hour from `begin` on, as if `times` as many came: copies shifted around the hour."""
    found = []
    with gzip.open(path, "rt", newline="") as lines:
        rows = [(float(row["arrival_s"]), int(row["prompt_tokens"]), int(row["output_tokens"])) for row in csv.DictReader(lines)]
    for copy in range(times):
        for arrival, prompt, output in rows:
            at = (arrival + copy * 613.0 - begin) % 3500.0
            if at < SECONDS:
                found.append(Request(at + prompt * 50e-6, max(1, output)))
    return sorted(found, key=lambda request: request.ready)


def steps(of_model: Sequence[Sequence[Request]]) -> list[Run]:
    """Each model's steps, in order of time."""
    found = []
    for model, wanted in enumerate(of_model):
        runs = ClosedLoop(wanted, LARGEST).at_eager_speed([STEP_S] * LARGEST)
        found += [Run(run_.time, model, run_.size, run_.steps) for run_ in runs]
    return sorted(found, key=lambda run_: (run_.time, run_.model))


def spread(wanted: Sequence[Request], models: int, random: Random) -> list[list[Request]]:
    """Each request goes to one of the models, the n-th of them 1/n as often as the first."""
    parts: list[list[Request]] = [[] for _ in range(models)]
    weights = [1.0 / (model + 1) for model in range(models)]
    for request in wanted:
        parts[random.choices(range(models), weights)[0]].append(request)
    return parts


def costs(models: int, random: Random) -> list[Prices]:
    """From small ones that gain a lot to large ones that gain little."""
    found = []
    for _ in range(models):
        eager, share, capture, own = random.uniform(2e-3, 12e-3), random.uniform(0.15, 0.8), random.uniform(0.1, 0.6), random.randint(5, 30)
        rows = range(1, LARGEST + 1)
        rise = random.uniform(0.0, 0.01)
        found.append(
            Prices(
                eager=[eager * (1.0 + max(0.0, rise * (row - 32))) for row in rows],
                replay=[eager * share * (1.0 + 2.0 * rise * row) for row in rows],
                capture=[capture * (1.0 + 0.004 * row) for row in rows],
                own=[int((own + 0.1 * row) * MIB) for row in rows],
                top=[0] * LARGEST,
            )
        )
    return found


def best_fixed_s(prices: Sequence[Prices], runs: Sequence[Run], budget: int) -> float:
    """Net seconds of the best fixed set that one price per byte finds for all models."""
    offers = []
    for model, histogram in histogram_of(runs).items():
        demand = Demand(tuple(ladder_of(LARGEST).buckets()), prices[model], Outlook(), 0.0)
        demand.assume([histogram.get(size, 0.0) for size in range(1, LARGEST + 1)])
        offers.append((demand, Pricing(demand, 1.0, demand.prices.capture.__getitem__, [size - 1 for size in sorted(histogram)])))
    best, low, high = 0.0, 0.0, 1e-3
    for _ in range(60):
        price = 0.5 * (low + high)
        chosen = [(demand, pricing.best(price)) for demand, pricing in offers]
        if sum(demand.prices.bytes(positions) for demand, positions in chosen) <= budget:
            net = sum(demand.saving(positions) - sum(demand.prices.capture[at] for at in positions) for demand, positions in chosen)
            best, high = max(best, net), price
        else:
            low = price
    return best


def scenarios(folder: Path) -> Iterator[tuple[str, list[Run], list[Prices], Sequence[int]]]:
    """Name, steps, costs, and budgets in graphs of middling size."""
    random = Random(7)
    code, conv = folder / "azure_code_2023.csv.gz", folder / "azure_conv_2023.csv.gz"
    for name, path, times, begin in (("code x8", code, 8, 0.0), ("conv x1", conv, 1, 900.0), ("conv x8", conv, 8, 1800.0)):
        yield name, steps([requests(path, times, begin)]), costs(1, random), (1, 3)
    for models, times in ((20, 2), (86, 4)):
        mixed = requests(conv, times, 300.0) + requests(code, times, 300.0)
        yield f"fleet of {models}", steps(spread(mixed, models, random)), costs(models, random), (models // 8, models // 2)


def scaled(prices: Prices, scale: float) -> Prices:
    """The same with cheaper or dearer captures."""
    return Prices(prices.eager, prices.replay, [scale * each for each in prices.capture], prices.own, prices.top)


def rows(folder: Path) -> Iterator[tuple[str, Mapping[str, float]]]:
    """What each policy reaches, in per cent of the best fixed set."""
    for name, runs, prices, budgets in scenarios(folder):
        middling = sum(of_model.own[8] for of_model in prices) / len(prices)
        for graphs in budgets:
            budget = int(middling * (graphs + 0.5))
            for scale in SCALES:
                now = [scaled(of_model, scale) for of_model in prices]
                best = best_fixed_s(now, runs, budget)
                reached = {str(policy): run(policy, now, budget, Recorded(runs)).net_s for policy in (Policy.PAYBACK, *OTHERS)}
                yield f"{name}, {graphs} graphs, captures x{scale}", {who: 100.0 * net_s / best for who, net_s in reached.items()}


def closed_rows(folder: Path) -> Iterator[tuple[str, Mapping[str, float]]]:
    """The speed of tokens with each policy, in per cent of that with the best fixed set."""
    random = Random(11)
    code, conv = folder / "azure_code_2023.csv.gz", folder / "azure_conv_2023.csv.gz"
    for name, path, times, begin in (("code x30", code, 30, 1200.0), ("conv x1", conv, 1, 900.0), ("conv x6", conv, 6, 0.0)):
        wanted = requests(path, times, begin)
        for draw in "ab":
            prices = costs(1, random)
            for graphs in (1, 3):
                budget = int(prices[0].own[8] * (graphs + 0.5))
                _, best = best_closed(prices[0], budget, wanted)
                reached = {}
                for policy in (Policy.PAYBACK, *OTHERS):
                    loop = ClosedLoop(wanted, LARGEST)
                    run(policy, prices, budget, loop)
                    reached[str(policy)] = 100.0 * best / loop.mean_token_s
                yield f"{name}, costs {draw}, {graphs} graphs, closed loop", reached


def main(arguments: Sequence[str]) -> int:
    """Print the table; 1 where another policy is ahead."""
    folder = Path(arguments[0] if arguments else os.environ.get("DATA_DIR", DEFAULT_FOLDER))
    if not (folder / "azure_conv_2023.csv.gz").exists():
        print(f"policy-heldout: {folder} has no traces; name their folder: DATA_DIR=…")
        return 2
    behind = 0
    print(f"{'of the best fixed set':44s}", *(f"{policy:>9s}" for policy in (Policy.PAYBACK, *OTHERS)))
    for name, reached in chain(closed_rows(folder), rows(folder)):
        late = reached[str(Policy.PAYBACK)] < max(reached.values()) - 0.05
        behind += late
        print(f"{name:44s}", *(f"{share:8.2f}%" for share in reached.values()), "BEHIND" if late else "", flush=True)
    return int(behind > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
