"""Single values out of what Prometheus would scrape."""

from __future__ import annotations


def sample(text: str, series: str) -> float:
    """The value of a series, written as in the text (`name{label="value"}`); 0 where there is none."""
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name == series:
            return float(value)
    return 0.0
