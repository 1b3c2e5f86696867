"""`graphcache profile`: what the profile store holds, into a file and back, and a store filled from a recorded trace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from secrets import token_hex
from time import time
from typing import Any, TypeVar

import click
from rich.markup import escape

from cachepolicy.profile import TrafficProfile, Workload, shape_of
from service import config as configuration
from service.choices import Phase
from service.cli import options, printing
from service.cli.traffic import trace as traces
from service.cli.traffic.sizing import live_sequences, sizing
from service.config import Config, ModelConfig
from service.errors import ConfigError, Unavailable
from service.stores.base import HALF_LIFE_S, WINDOW_S, Contents, CostRecord, ProfileStore, StoreError, Window
from service.stores.opening import open_store
from service.stores.records import cost_from_plain

T = TypeVar("T")
Command = Callable[..., Any]
_SHOWN = 20  # shapes of a workload


def store_options(command: Command) -> Command:
    """-c FILE and --set: whose `profile_store` is meant."""
    file = click.option(
        "-c",
        "--config",
        "file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The workers' configuration; by default that of --demo.",
    )
    return file(options.sets(command))


@click.group()
def profile() -> None:
    """Look into the profile store that a configuration names, and fill it."""


@profile.command()
@click.argument("model", default="")
@store_options
@options.as_json
def show(model: str, file: Path | None, sets: tuple[str, ...], as_json: bool) -> None:
    """What traffic MODEL, or every model, has had of late, and what was measured."""
    found = _read(_load(file, sets))
    traffic, costs = _summed(found), [record for record in found.costs if model in ("", record.model)]
    workloads = [workload for workload in sorted(traffic.tallies) if model in ("", workload.model)]
    if as_json:
        told = [_plain_workload(traffic, workload) for workload in workloads]
        windows = [{"start": window.start, "worker": window.worker, "seconds": window.traffic.seconds} for window in found.windows]
        printing.print_json({"workloads": told, "windows": windows, "costs": [_plain_cost(record) for record in costs]})
        return
    workers = {window.worker for window in found.windows}
    click.echo(f"{len(found.windows)} windows of {len(workers)} workers, halved for each hour of age; runs a second are one worker's")
    for workload in workloads:
        _print_workload(traffic, workload)
    if costs:
        _print_costs(costs)


def _print_workload(traffic: TrafficProfile, workload: Workload) -> None:
    tally, rates = traffic.tallies[workload], traffic.rates(workload)
    shapes = list(tally.shapes().items())
    rows = [
        (printing.sizes(dict(shape)), f"{rates.get(shape, 0.0):.3g}", f"{runs:.4g}", printing.percent(runs / tally.total))
        for shape, runs in shapes[:_SHOWN]
    ]
    printing.console().print(printing.table(("shape", ">runs/s", ">runs", ">share"), rows, title=escape(str(workload))))
    more = f"{len(shapes) - _SHOWN} more shapes; " if len(shapes) > _SHOWN else ""
    click.echo(f"{more}rounded up {tally.rounded:.4g}, other {tally.other:.4g} runs; a count lacks {tally.error:.3g} at most")


def _print_costs(costs: Sequence[CostRecord]) -> None:
    rows = [
        (
            record.model,
            printing.sizes(dict(record.bucket)),
            record.device,
            record.environment,
            printing.milliseconds(record.eager_s),
            printing.milliseconds(record.replay_s),
            printing.milliseconds(record.capture_s),
            printing.size(record.bytes),
        )
        for record in sorted(costs, key=lambda record: (record.model, record.environment, record.program, record.bucket))
    ]
    columns = ("model", "bucket", "device", "environment", ">eager", ">replay", ">capture", ">bytes")
    printing.console().print(printing.table(columns, rows, title="measured"))


@profile.command()
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write to FILE; to the terminal by default.")
@store_options
@click.option("--json", is_flag=True, expose_value=False, help="Print JSON, as it does anyway.")
def export(out: Path | None, file: Path | None, sets: tuple[str, ...]) -> None:
    """Write traffic and costs as one JSON document."""
    found = _read(_load(file, sets))
    text = json.dumps({"traffic": _summed(found).plain(), "costs": [_plain_cost(record) for record in found.costs]}, indent=2)
    if out is None:
        click.echo(text)
        return
    try:
        out.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out}: {error.strerror}") from None


@profile.command("import")
@click.argument("document", type=click.Path(path_type=Path), metavar="FILE")
@store_options
@options.as_json
def import_(document: Path, file: Path | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Add what `export` wrote to the store, as traffic of just now."""
    loaded = _load(file, sets)
    traffic, costs = _document(document)
    _write(loaded, f"import-{token_hex(3)}", traffic, costs)
    _told(traffic, len(costs), as_json=as_json)


@profile.command("seed-from-trace")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--model", "models", multiple=True, required=True, help="A model of the configuration; repeat it for several.")
@options.variants
@click.option(
    "--step-every",
    type=options.DURATION,
    default="25ms",
    show_default=True,
    metavar="DURATION",
    help="Decoding steps of models with slots.",
)
@store_options
@options.as_json
def seed_from_trace(
    trace: Path,
    models: tuple[str, ...],
    variants: dict[str, str],
    step_every: float,
    file: Path | None,
    sets: tuple[str, ...],
    as_json: bool,
) -> None:
    """Add the shapes that TRACE would bring to each MODEL, sized as `replay-trace` sizes them, as traffic of just now.

    The models' axes have to be declared with their maxima. Requests count one by one: that a worker merges some is not foreseen.
    """
    loaded = _load(file, sets)
    arrivals = traces.read(trace)
    now = time()
    traffic = TrafficProfile(now)
    traffic.watch(max(1.0, arrivals[-1].at_s - arrivals[0].at_s), now)
    for name in models:
        workload, shapes = _shapes(loaded, name, variants, arrivals, step_every)
        for shape in shapes:
            traffic.note(workload, shape_of(shape), now)
    _write(loaded, f"trace-{token_hex(3)}", traffic, [])
    _told(traffic, 0, as_json=as_json)


def _shapes(
    loaded: Config, name: str, variants: dict[str, str], arrivals: Sequence[traces.Arrival], step_s: float
) -> tuple[Workload, Sequence[dict[str, int]]]:
    model = next((model for model in loaded.models if model.name == name), None)
    if model is None:
        raise ConfigError(f"--model: no model is named {name}; there are {', '.join(model.name for model in loaded.models) or 'none'}")
    axes = {axis: found.max for axis, found in model.axes.items() if found.max is not None}
    if not axes or len(axes) < len(model.axes):
        raise ConfigError(f"{name}: seed-from-trace needs the model's axes declared with max")
    batch = model.batching.axis
    workload = Workload(name, _variant(model, variants), str(model.phase or Phase.ANY))
    if model.state:
        return workload, [{batch: live} for live in live_sequences(arrivals, step_s, axes[batch])]
    sizes_of, _ = sizing(axes, batch, arrivals)
    return workload, [sizes_of(arrival) for arrival in arrivals]


def _variant(model: ModelConfig, wanted: dict[str, str]) -> tuple[tuple[str, str], ...]:
    for name, value in wanted.items():
        if value not in model.variants.get(name, ()):
            raise ConfigError(f"--variant: {model.name} has no variant {name}={value}")
    return tuple((name, wanted.get(name, choices[0])) for name, choices in model.variants.items())


def _load(file: Path | None, sets: tuple[str, ...]) -> Config:
    loaded = configuration.load(file, sets, demo=file is None)
    if loaded.profile_store == "none":
        raise ConfigError("profile_store: is none, there is nothing to look into")
    return loaded


def _read(loaded: Config) -> Contents:
    return _run(loaded, lambda store: store.read(time()))


def _write(loaded: Config, worker: str, traffic: TrafficProfile, costs: Sequence[CostRecord]) -> None:
    start = int(time() // WINDOW_S * WINDOW_S)
    window = Window(start, worker, TrafficProfile(float(start), tallies=traffic.tallies, seconds=traffic.seconds))
    _run(loaded, lambda store: store.write([window], costs, time()))


def _run(loaded: Config, work: Callable[[ProfileStore], Awaitable[T]]) -> T:
    skipped = 0

    def skip() -> None:
        nonlocal skipped
        skipped += 1

    async def once() -> T:
        store = open_store(loaded.profile_store, loaded.state_dir, skip, at_hand=True)
        assert store is not None
        try:
            return await work(store)
        except StoreError as error:
            raise Unavailable(f"profile store: {error}") from None
        finally:
            await store.close()

    result = asyncio.run(once())
    if skipped:
        click.echo(f"{skipped} records were not valid and are left out", err=True)
    return result


def _summed(found: Contents) -> TrafficProfile:
    traffic = TrafficProfile(time(), HALF_LIFE_S)
    for window in found.windows:
        traffic.merge(window.traffic)
    return traffic


def _plain_workload(traffic: TrafficProfile, workload: Workload) -> dict[str, Any]:
    tally, rates = traffic.tallies[workload], traffic.rates(workload)
    shapes = [{"shape": dict(shape), "runs": runs, "runs_per_s": rates.get(shape, 0.0)} for shape, runs in tally.shapes().items()]
    named = {"model": workload.model, "variant": dict(workload.variant), "phase": workload.phase}
    return {**named, "runs": tally.total, "rounded": tally.rounded, "other": tally.other, "error": tally.error, "shapes": shapes}


def _plain_cost(record: CostRecord) -> dict[str, Any]:
    return {**asdict(record), "bucket": dict(record.bucket)}


def _document(path: Path) -> tuple[TrafficProfile, list[CostRecord]]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("must be a mapping with traffic and costs")  # noqa: TRY004, TRY301 - all that is wrong is told alike
        traffic = TrafficProfile.from_plain(value.get("traffic"))
        costs = value.get("costs", [])
        if not isinstance(costs, list):
            raise ValueError("costs: must be a list")  # noqa: TRY004, TRY301 - likewise
        return traffic, [cost_from_plain(item, f"costs[{index}]") for index, item in enumerate(costs)]
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _told(traffic: TrafficProfile, costs: int, *, as_json: bool) -> None:
    runs = {str(workload): tally.total for workload, tally in traffic.tallies.items()}
    if as_json:
        printing.print_json({"runs": runs, "costs": costs})
    else:
        added = [f"{count:.0f} runs of {workload}" for workload, count in runs.items()]
        click.echo(f"added {', '.join(chain(added, [f'{costs} costs'] if costs else []))}")
