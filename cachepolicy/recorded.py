"""Files that simulations read and write: runs, cost tables, histograms, events. What makes no sense is a ValueError that says where."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from cachepolicy.costs import Prices
from cachepolicy.simulate import Event, Run

MIB = 1 << 20
_MOST = 1e12  # of whatever is counted or measured here


@dataclass(frozen=True, slots=True)
class ArenaShape:
    """Bytes of graphs that share an arena, in MiB: base + slope * largest size, rounded up, + per_graph * count."""

    base: float
    slope: float
    per_graph: float

    def top_bytes(self, size: int) -> int:
        """Bytes of an arena whose largest graph has `size` rows, its graphs' own aside."""
        return ceil(self.base + self.slope * size) * MIB

    @classmethod
    def parse(cls, text: str) -> ArenaShape:
        """Read `BASE,SLOPE,PER_GRAPH`. Raises ValueError."""
        parts = text.split(",")
        if len(parts) != 3:
            raise ValueError(f"{text!r} is not BASE,SLOPE,PER_GRAPH")
        return cls(*(_number(part, name) for part, name in zip(parts, ("BASE", "SLOPE", "PER_GRAPH"), strict=True)))


def read_runs(path: Path, largest: Sequence[int] | None = None) -> Iterator[Run]:
    """Rows `t_s,model,b,n` of a gzipped CSV file, in order of time. `largest` size per model, where that is known."""
    before = 0.0
    with gzip.open(path, "rt", newline="") as file:
        lines = csv.DictReader(file)
        for row in lines:
            at = f"line {lines.line_num}"
            time = _number(row.get("t_s"), f"{at}: t_s", before)
            model = _whole(row.get("model"), f"{at}: model", 0, _MOST if largest is None else len(largest) - 1)
            size = _whole(row.get("b"), f"{at}: b", 1, _MOST if largest is None else largest[model])
            yield Run(time, model, size, _whole(row.get("n"), f"{at}: n"))
            before = time
    if lines.line_num <= 1:
        raise ValueError("has no runs")


def read_prices(path: Path, capture_scale: float = 1.0, arena: ArenaShape | None = None) -> list[Prices]:
    """Cost tables `{"models": [{"E_ms", "G_ms", "C_ms", "MB"}]}` by size 0…; position i of the result is size i + 1."""
    prices = []
    for number, model in enumerate(_members(path, "models")):
        if not isinstance(model, dict):
            raise ValueError(f"model {number}: not an object")  # noqa: TRY004 - of what was read, not of an argument
        eager, replay, capture, size_mb = (_column(model, name, number) for name in ("E_ms", "G_ms", "C_ms", "MB"))
        if not eager or len({len(eager), len(replay), len(capture), len(size_mb)}) > 1:
            raise ValueError(f"model {number}: E_ms, G_ms, C_ms and MB have to be equally long, from size 0 to at least 1")
        sizes = range(1, len(eager) + 1)
        prices.append(
            Prices(
                eager=[each / 1e3 for each in eager],
                replay=[each / 1e3 for each in replay],
                capture=[capture_scale * each / 1e3 for each in capture],
                own=[int((arena.per_graph if arena else each) * MIB) for each in size_mb],
                top=[arena.top_bytes(size) if arena else 0 for size in sizes],
            )
        )
    if not prices:
        raise ValueError("has no models")
    return prices


def read_histogram(path: Path, largest: Sequence[int] | None = None) -> dict[int, dict[int, float]]:
    """Expected steps: `{"MODEL": {"SIZE": STEPS}}`. `largest` size per model, where that is known."""
    found: dict[int, dict[int, float]] = {}
    for name, sizes in _object(path).items():
        model = _whole(name, "model", 0, _MOST if largest is None else len(largest) - 1)
        if not isinstance(sizes, dict):
            raise ValueError(f"model {name}: not an object of steps by size")  # noqa: TRY004
        most = _MOST if largest is None else largest[model]
        found[model] = {_whole(size, f"model {name}: size", 1, most): _number(n, f"model {name}: size {size}") for size, n in sizes.items()}
    return found


def write_events(path: Path, events: Iterable[Event]) -> None:
    """One JSON object a line, in order."""
    path.write_text("".join(json.dumps(event.plain()) + "\n" for event in events))


def _object(path: Path) -> dict[str, object]:
    found = json.loads(path.read_text())
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004
    return found


def _members(path: Path, name: str) -> list[object]:
    found = _object(path).get(name)
    if not isinstance(found, list):
        raise ValueError(f"{name!r} has to be a list")  # noqa: TRY004
    return found


def _column(model: dict[str, object], name: str, number: int) -> list[float]:
    """Figures from size 1 on."""
    values = model.get(name)
    if not isinstance(values, list):
        raise ValueError(f"model {number}: {name} has to be a list")  # noqa: TRY004
    return [_number(value, f"model {number}: {name} of size {size}") for size, value in enumerate(values) if size]


def _number(value: object, what: str, least: float = 0.0, most: float = _MOST) -> float:
    """A figure within bounds. Raises ValueError."""
    try:
        found = float(value) if isinstance(value, str | int | float) else None
    except ValueError:
        found = None
    if found is None or not least <= found <= most:
        raise ValueError(f"{what}: {str(value)[:40]} is not a number from {least:.16g} to {most:.16g}")
    return found


def _whole(value: object, what: str, least: float = 0, most: float = _MOST) -> int:
    found = _number(value, what, least, most)
    if found != int(found):
        raise ValueError(f"{what}: {str(value)[:40]} is not a whole number")
    return int(found)
