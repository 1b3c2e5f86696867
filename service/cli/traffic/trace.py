"""A recorded trace: when requests came and how large they were."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from service.errors import ConfigError

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of the trace; `at_s` counts from the trace's beginning."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


def bundled() -> Path:
    """The trace that comes with the package (service/cli/data/ATTRIBUTION.md says where it is from)."""
    return Path(str(resources.files("service.cli") / "data" / "azure_conv_10min.csv.gz"))


def read(path: Path) -> list[Arrival]:
    """Arrivals of a CSV file, gzipped where its name says so, in order of time. Raises ConfigError, naming the line."""
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8", newline="") if path.suffix == ".gz" else path.open(encoding="utf-8", newline="") as file
        ):
            lines = csv.DictReader(file)
            if missing := set(COLUMNS) - set(lines.fieldnames or ()):
                raise ConfigError(f"{path}: line 1: column {min(missing)} is missing")
            arrivals = [_arrival(path, lines.line_num, line) for line in lines]
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not arrivals:
        raise ConfigError(f"{path}: has no arrivals")
    return sorted(arrivals, key=lambda arrival: arrival.at_s)


def _arrival(path: Path, number: int, line: dict[str, str]) -> Arrival:
    try:
        arrival = Arrival(float(line["arrival_s"]), int(line["prompt_tokens"]), int(line["output_tokens"]))
    except (TypeError, ValueError):
        raise ConfigError(f"{path}: line {number}: not three numbers") from None
    if not (0 <= arrival.at_s < float("inf") and arrival.prompt_tokens >= 0 and arrival.output_tokens >= 0):
        raise ConfigError(f"{path}: line {number}: a negative number")
    return arrival


def p95(values: Sequence[int]) -> int:
    """The 95th percentile, at least 1."""
    return max(1, sorted(values)[int(0.95 * (len(values) - 1))])
