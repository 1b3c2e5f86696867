"""`graphcache simulate`: the cache policy against recorded traffic, beside what others do."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from cachepolicy.closed_loop import ClosedLoop, Request, requests_of
from cachepolicy.contest import Policy, Profile, run
from cachepolicy.costs import Prices
from cachepolicy.recorded import MIB, ArenaShape, read_histogram, read_prices, read_runs, write_events
from cachepolicy.simulate import Outcome, Recorded, Source
from service.cli import options, printing
from service.cli.traffic import trace as traces
from service.errors import ConfigError

_LARGEST = 256
_PREFILL_S_PER_TOKEN = 50e-6


@dataclass(frozen=True, slots=True)
class _Result:
    """One policy's outcome; `token_s` is the mean time per token, in a closed loop only."""

    policy: Policy
    outcome: Outcome
    token_s: float | None

    def plain(self) -> dict[str, object]:
        """JSON."""
        outcome = self.outcome
        return {
            "policy": str(self.policy),
            "net_s": round(outcome.net_s, 3),
            "saved_s": round(outcome.saved_s, 3),
            "capture_s": round(outcome.capture_s, 3),
            "eager_s": round(outcome.eager_s, 3),
            "steps": outcome.steps,
            "replayed": round(outcome.replayed / max(1, outcome.steps), 5),
            "padding_ratio": round(outcome.padding / max(1, outcome.rows), 5),
            "captures": outcome.count("capture"),
            "evictions": outcome.count("evict"),
            "rebuilds": outcome.count("rebuild"),
            "token_ms": None if self.token_s is None else round(self.token_s * 1e3, 5),
        }


@click.command()
@click.argument("trace", required=False, type=click.Path(path_type=Path))
@click.option("--runs", type=click.Path(path_type=Path), metavar="FILE.csv.gz", help="Recorded steps, instead of a trace of requests.")
@click.option(
    "--costs", type=click.Path(path_type=Path), metavar="FILE.json", help="Costs by size; else those of a 1B decode step on an H200."
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice([str(policy) for policy in Policy]),
    help="One, or several to compare; all by default.",
)
@click.option("--budget", type=options.SIZE, metavar="SIZE", help="Bytes for graphs, e.g. 256MiB.")
@click.option("--budget-mb", type=options.Finite(min=0, min_open=True), metavar="N", help="The same in MiB.")
@click.option("--arena", metavar="BASE,SLOPE,PER_GRAPH", help="Graphs of a model share an arena of so many MiB.")
@click.option(
    "--capture-scale", type=options.Finite(min=0, max=1e6), default=1.0, show_default=True, help="Multiply the costs of captures."
)
@click.option("--profile", type=click.Path(path_type=Path), metavar="HISTOGRAM.json", help='Expected steps: {"MODEL": {"SIZE": STEPS}}.')
@click.option(
    "--events", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write captures and evictions; one policy only."
)
@click.option("--closed-loop", is_flag=True, help="Steps take as long as the policy makes them take; one model only.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png", help="Draw net savings.")
@options.as_json
def simulate(
    trace: Path | None,
    runs: Path | None,
    costs: Path | None,
    policies: tuple[str, ...],
    budget: float | None,
    budget_mb: float | None,
    arena: str | None,
    capture_scale: float,
    profile: Path | None,
    events: Path | None,
    closed_loop: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Run the cache policy against TRACE (requests: arrival, prompt and output tokens) or recorded steps, offline."""
    if (trace is None) == (runs is None):
        raise click.UsageError("give either TRACE or --runs FILE")
    if (budget is None) == (budget_mb is None):
        raise click.UsageError("give either --budget SIZE or --budget-mb N")
    chosen = [Policy(name) for name in policies] or list(Policy)
    if events is not None and len(chosen) != 1:
        raise click.UsageError("--events takes one --policy")
    prices, expected, sources = _read(trace, runs, costs, arena, capture_scale, profile, closed_loop=closed_loop)
    results = []
    for policy in chosen:
        source = sources()
        outcome = run(policy, prices, int(budget if budget is not None else (budget_mb or 0) * MIB), source, expected)
        results.append(_Result(policy, outcome, source.mean_token_s if isinstance(source, ClosedLoop) else None))
    if events is not None:
        write_events(events, results[0].outcome.events)
    if plot is not None:
        from service.cli.plots import draw_contest  # noqa: PLC0415 - takes a second to import

        draw_contest([result.plain() for result in results], plot)
    if as_json:
        printing.print_json([result.plain() for result in results])
    else:
        _print(results)


def _read(
    trace: Path | None,
    runs: Path | None,
    costs: Path | None,
    arena: str | None,
    capture_scale: float,
    profile: Path | None,
    *,
    closed_loop: bool,
) -> tuple[list[Prices], Profile | None, Callable[[], Source]]:
    """Costs, what is expected, and a maker of sources. Raises ConfigError, naming the file."""
    at: Path | str = "--arena"
    try:
        shape = None if arena is None else ArenaShape.parse(arena)
        at = costs or "--costs"
        prices = [_decode_step(capture_scale, shape)] if costs is None else read_prices(costs, capture_scale, shape)
        largest = [len(of_model.eager) for of_model in prices]
        at = profile or "--profile"
        expected = None if profile is None else read_histogram(profile, largest)
        if runs is not None:
            at = runs
            recorded = list(read_runs(runs, largest))
            if not closed_loop:
                return prices, expected, lambda: Recorded(recorded)
            requests = requests_of(recorded)
        else:
            assert trace is not None
            requests = [
                Request(arrival.at_s + arrival.prompt_tokens * _PREFILL_S_PER_TOKEN, max(1, arrival.output_tokens))
                for arrival in traces.read(trace)
            ]
    except (OSError, EOFError, ValueError, csv.Error) as error:
        raise ConfigError(f"{at}: {getattr(error, 'strerror', None) or error}") from None
    if len(prices) != 1:
        raise click.UsageError("a trace of requests and a closed loop have one model")
    if closed_loop:
        return prices, expected, lambda: ClosedLoop(requests, *largest)
    eager = ClosedLoop(requests, *largest)
    recorded = eager.at_eager_speed(prices[0].eager)
    return prices, expected, lambda: Recorded(recorded)


def _decode_step(capture_scale: float, arena: ArenaShape | None) -> Prices:
    """A decode step of a 1B model on an H200: fitted to eager 5.4 to 10.4 ms and replay 1.55 to 1.9 ms from 1 to 64 rows."""
    sizes = range(1, _LARGEST + 1)
    own = [(20 if arena is None else arena.per_graph) * MIB for _ in sizes]
    prices = Prices(
        eager=[(5.4 + 0.078 * max(0, size - 8)) / 1e3 for size in sizes],
        replay=[(1.54 + 0.0055 * size) / 1e3 for size in sizes],
        capture=[capture_scale * 0.025 for _ in sizes],
        own=[int(size) for size in own],
        top=[0 for _ in sizes],
    )
    return prices if arena is None else replace(prices, top=[arena.top_bytes(size) for size in sizes])


def _print(results: Sequence[_Result]) -> None:
    rows = []
    for result in sorted(results, key=lambda result: -result.outcome.net_s):
        plain, outcome = result.plain(), result.outcome
        rows.append(
            (
                result.policy,
                f"{outcome.net_s:.2f}",
                printing.percent(outcome.net_s / max(1e-9, outcome.eager_s)),
                printing.percent(outcome.replayed / max(1, outcome.steps)),
                printing.percent(outcome.padding / max(1, outcome.rows)),
                plain["captures"],
                plain["evictions"],
                plain["rebuilds"],
                printing.milliseconds(result.token_s),
            )
        )
    columns = (">policy", ">net saved, s", ">of eager", ">replayed", ">padding", ">captures", ">evictions", ">rebuilds", ">per token")
    printing.console().print(printing.table((columns[0].removeprefix(">"), *columns[1:]), rows))
