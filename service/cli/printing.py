"""How commands print: JSON, tables, and numbers with units."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import click
from rich.console import Console
from rich.table import Table

PIPE_WIDTH = 10_000  # nothing is wrapped or cut where a program reads it


def console(*, stderr: bool = False) -> Console:
    """The terminal, or a wide page where there is none."""
    found = Console(stderr=stderr, highlight=False)
    if not found.is_terminal:
        found = Console(stderr=stderr, highlight=False, width=PIPE_WIDTH)
    return found


def print_json(value: object) -> None:
    """One document."""
    click.echo(json.dumps(value, indent=2))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> Table:
    """A plain table; columns that end in a unit or a count are right-aligned by writing `>` before their name."""
    result = Table(box=None, title=title, title_justify="left", pad_edge=False, header_style="bold")
    for column in columns:
        result.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    for row in rows:
        result.add_row(*(str(cell) for cell in row))
    return result


def milliseconds(seconds: float | None) -> str:
    """Three significant digits, "-" where nothing was measured."""
    return "-" if seconds is None else f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def percent(share: float) -> str:
    """One decimal."""
    return f"{share * 100:.1f} %"


def size(count: int) -> str:
    """Bytes in the unit that fits."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.4g} {unit}"


def sizes(bucket: dict[str, int] | None) -> str:
    """AXIS=SIZE, as it is typed."""
    return ",".join(f"{axis}={size}" for axis, size in bucket.items()) if bucket else "-"
