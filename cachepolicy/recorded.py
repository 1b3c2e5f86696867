"""Files that simulations read and write: runs, cost tables, histograms, events."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from cachepolicy.costs import Prices
from cachepolicy.simulate import Event, Run

MIB = 1 << 20


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
        base, slope, per_graph = (float(part) for part in text.split(","))
        return cls(base, slope, per_graph)


def read_runs(path: Path) -> Iterator[Run]:
    """Rows `t_s,model,b,n` of a gzipped CSV file."""
    with gzip.open(path, "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            yield Run(float(row["t_s"]), int(row["model"]), int(row["b"]), int(row["n"]))


def read_prices(path: Path, capture_scale: float = 1.0, arena: ArenaShape | None = None) -> list[Prices]:
    """Cost tables `{"models": [{"E_ms", "G_ms", "C_ms", "MB"}]}` by size 0…; position i of the result is size i + 1."""
    prices = []
    for model in json.loads(path.read_text())["models"]:
        sizes = range(1, len(model["E_ms"]))
        prices.append(
            Prices(
                eager=[model["E_ms"][size] / 1e3 for size in sizes],
                replay=[model["G_ms"][size] / 1e3 for size in sizes],
                capture=[capture_scale * model["C_ms"][size] / 1e3 for size in sizes],
                own=[int((arena.per_graph if arena else model["MB"][size]) * MIB) for size in sizes],
                top=[arena.top_bytes(size) if arena else 0 for size in sizes],
            )
        )
    return prices


def read_histogram(path: Path) -> dict[int, dict[int, float]]:
    """Expected steps: `{"MODEL": {"SIZE": STEPS}}`."""
    return {int(model): {int(size): float(steps) for size, steps in sizes.items()} for model, sizes in json.loads(path.read_text()).items()}


def write_events(path: Path, events: Iterable[Event]) -> None:
    """One JSON object a line, in order."""
    path.write_text("".join(json.dumps(event.plain()) + "\n" for event in events))
