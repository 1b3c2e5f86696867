"""Pictures of plans and simulations. Needs matplotlib, which the command line does without otherwise: `pip install graphcache[plot]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from service.cli import printing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_plan(plan: Mapping[str, Any], file: Path) -> None:
    """Traffic by size with the chosen buckets, and what each graph adds, as a PNG."""
    figure = _figure((10, 7))
    above, below = figure.subplots(2, 1)
    sizes = [printing.sizes(entry["size"]) for entry in plan["histogram"]]
    above.bar(range(len(sizes)), [entry["runs"] for entry in plan["histogram"]], color="tab:blue", label="runs of this size")
    place = {text: at for at, text in enumerate(sizes)}
    buckets = [printing.sizes(graph["bucket"]) for graph in plan["graphs"]]
    for number, bucket in enumerate(buckets):
        if bucket in place:
            above.axvline(place[bucket], color="tab:orange", linestyle="--", label="" if number else "chosen buckets")
    step = max(1, len(sizes) // 24)
    above.set_xticks(range(0, len(sizes), step), sizes[::step], rotation=60, ha="right")
    above.set_ylabel("runs")
    above.set_title(f"{plan['model']}: traffic and buckets")
    above.legend()
    below.bar(range(len(buckets)), [graph["adds_ms_per_s"] for graph in plan["graphs"]], color="tab:orange")
    below.set_xticks(range(len(buckets)), buckets, rotation=60, ha="right")
    below.set_ylabel("adds, ms/s")
    below.set_title("what each graph adds to those before it")
    _save(figure, file)


def draw_contest(results: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Net saving and time spent on captures by policy, as a PNG."""
    figure = _figure((10, 5))
    axes = figure.subplots()
    names = [result["policy"] for result in results]
    axes.bar(names, [result["net_s"] for result in results], color="tab:blue", label="net saving")
    axes.plot(names, [result["capture_s"] for result in results], "o", color="tab:orange", label="spent on captures")
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_ylabel("seconds")
    axes.legend()
    _save(figure, file)


def _figure(inches: tuple[float, float]) -> Any:  # noqa: ANN401 - matplotlib is optional
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ImportError:
        raise click.ClickException("--plot needs matplotlib: pip install 'graphcache[plot]'") from None
    return Figure(figsize=inches, layout="constrained")


def _save(figure: Figure, file: Path) -> None:
    try:
        figure.savefig(file, format="png")
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror or error}") from None
