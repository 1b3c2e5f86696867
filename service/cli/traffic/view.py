"""Showing traffic while it runs: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from service.cli import printing
from service.cli.traffic.tally import ModelTally, overall_hit_ratio

REFRESHES_PER_S = 4
LINE_EVERY_S = 5.0

Clock = Callable[[], float]


class View:
    """A context in which `update` shows the tallies as they stand."""

    def __init__(self, console: Console, tallies: Sequence[ModelTally], total_s: float) -> None:
        self._console = console
        self._tallies = tallies
        self._total_s = total_s
        self._elapsed_s = 0.0
        self._last_line_s = 0.0
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=REFRESHES_PER_S, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def update(self, elapsed_s: float) -> None:
        """Show what there is after `elapsed_s` seconds."""
        self._elapsed_s = elapsed_s
        if not self._console.is_terminal and elapsed_s - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = elapsed_s
            told = "; ".join(_line(tally) for tally in self._tallies)
            self._console.print(f"{elapsed_s:.0f} of {self._total_s:.0f} s: {told}", soft_wrap=True)

    def _render(self) -> Group:
        done = Text(f" {min(self._elapsed_s, self._total_s):.0f} of {self._total_s:.0f} s")
        bar = Table.grid()
        bar.add_row(ProgressBar(total=self._total_s, completed=min(self._elapsed_s, self._total_s), width=60), done)
        return Group(bar, table(self._tallies))


def _line(tally: ModelTally) -> str:
    parts = [f"{tally.model} {tally.requests} requests, {printing.percent(tally.hit_ratio)} replayed"]
    if tally.count("replay"):
        parts.append(f"replay p50 {printing.milliseconds(tally.percentile('replay', 0.5))}")
    if tally.count("eager"):
        parts.append(f"eager p50 {printing.milliseconds(tally.percentile('eager', 0.5))}")
    if tally.errors:
        parts.append(f"{tally.errors} errors")
    return ", ".join(parts)


def table(tallies: Sequence[ModelTally]) -> Table:
    """A line per model and path."""
    rows: list[tuple[str, ...]] = []
    for tally in tallies:
        reasons = ", ".join(f"{reason} {count}" for reason, count in tally.reasons.most_common())
        for path, told in (("replay", f"padding {printing.percent(tally.padding_ratio)}"), ("eager", reasons)):
            if count := tally.count(path):
                times = [printing.milliseconds(tally.percentile(path, share)) for share in (0.5, 0.99)]
                rows.append((tally.model, path, str(count), printing.percent(count / tally.requests), *times, told))
    return printing.table(("model", "path", ">requests", ">share", ">p50", ">p99", ""), rows)


def summary(console: Console, tallies: Sequence[ModelTally], seconds: float) -> None:
    """What happened, for people."""
    console.print(table(tallies))
    for tally in tallies:
        console.print(f"{tally.model}: {tally.load}")
        console.print(
            f"  {tally.requests} requests with {tally.rows} rows in {seconds:.0f} s, hit ratio {printing.percent(tally.hit_ratio)}, "
            f"padding {printing.percent(tally.padding_ratio)}, delayed {tally.delayed}, shed {tally.shed}, errors {tally.errors}"
        )
        if tally.first_error:
            console.print(f"  first error: {tally.first_error}")
    requests = sum(tally.requests for tally in tallies)
    console.print(f"{requests} requests in {seconds:.0f} s, {printing.percent(overall_hit_ratio(tallies))} replayed from graphs")
