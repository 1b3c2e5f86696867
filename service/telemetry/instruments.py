"""Counters, gauges and histograms that are cheap to write and cheap to scrape, in Prometheus' text format and in OpenMetrics.

A series' labels are turned into text once, when it comes to be. Why not prometheus_client: docs/decisions/0065.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from time import time
from typing import Generic, TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One observation that a trace tells more about."""

    trace_id: str
    value: float
    at: float  # epoch seconds

    def __str__(self) -> str:
        return f' # {{trace_id="{self.trace_id}"}} {self.value!r} {self.at:.3f}'


S = TypeVar("S", bound="Series")


class Series(ABC):
    """The values behind one set of labels."""

    @abstractmethod
    def lines(self, *, exemplars: bool) -> Iterator[str]:
        """As text; exemplars in OpenMetrics only."""


class CounterSeries(Series):
    """A value that only grows."""

    def __init__(self, name: str, labels: str) -> None:
        self._head = f"{name}_total{labels} "
        self._value = 0.0
        self._exemplar: Exemplar | None = None
        self._lock = threading.Lock()

    @property
    def value(self) -> float:
        """The sum so far."""
        return self._value

    def inc(self, amount: float = 1.0, trace_id: str = "") -> None:
        """Add; the trace is kept as the exemplar."""
        with self._lock:
            self._value += amount
            if trace_id:
                self._exemplar = Exemplar(trace_id, amount, time())

    def lines(self, *, exemplars: bool) -> Iterator[str]:
        """One line."""
        exemplar = self._exemplar if exemplars else None
        yield f"{self._head}{self._value!r}{exemplar or ''}\n"


class GaugeSeries(Series):
    """A value that comes and goes."""

    def __init__(self, name: str, labels: str) -> None:
        self._head = f"{name}{labels} "
        self._value = 0.0

    def set(self, value: float) -> None:
        """The value from now on."""
        self._value = value

    def lines(self, *, exemplars: bool) -> Iterator[str]:
        """One line."""
        yield f"{self._head}{self._value!r}\n"


class HistogramSeries(Series):
    """Observations by upper bound, their sum and number."""

    def __init__(self, name: str, labels: str, bounds: Sequence[float]) -> None:
        inner = labels[1:-1] + "," if labels else ""
        self._bounds = bounds
        self._heads = [f'{name}_bucket{{{inner}le="{bound!r}"}} ' for bound in bounds] + [f'{name}_bucket{{{inner}le="+Inf"}} ']
        self._sum_head, self._count_head = f"{name}_sum{labels} ", f"{name}_count{labels} "
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._exemplars: dict[int, Exemplar] = {}
        self._lock = threading.Lock()

    @property
    def sum(self) -> float:
        """Of all observations."""
        return self._sum

    def observe(self, value: float, trace_id: str = "") -> None:
        """Count one observation; the trace is kept as its bucket's exemplar."""
        at = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[at] += 1
            self._sum += value
            if trace_id:
                self._exemplars[at] = Exemplar(trace_id, value, time())

    def lines(self, *, exemplars: bool) -> Iterator[str]:
        """One line for each bound, then the sum and the number."""
        with self._lock:
            counts, total = self._counts.copy(), self._sum
            found = dict(self._exemplars) if exemplars else {}
        below = 0
        for at, (head, count) in enumerate(zip(self._heads, counts, strict=True)):
            below += count
            yield f"{head}{below}{found.get(at, '')}\n"
        yield f"{self._count_head}{below}\n"
        yield f"{self._sum_head}{total!r}\n"


class Family(Generic[S]):
    """A metric: its name, what it is, and a series for each set of label values."""

    def __init__(self, kind: str, name: str, text: str, labels: Sequence[str], make: Callable[[str, str], S]) -> None:
        self.kind, self.name, self.text, self.labels = kind, name, text, tuple(labels)
        self._make = make
        self._series: dict[tuple[str, ...], S] = {}
        self._lock = threading.Lock()

    def of(self, *values: str) -> S:
        """The series of these label values, in the order of the labels."""
        found = self._series.get(values)
        if found is None:
            with self._lock:
                found = self._series.setdefault(values, self._make(self.name, label_text(self.labels, values)))
        return found

    def get(self, *values: str) -> S | None:
        """The series of these label values, where there is one."""
        return self._series.get(values)

    def items(self) -> list[tuple[tuple[str, ...], S]]:
        """Label values and their series."""
        return list(self._series.items())

    def drop(self, label: str, value: str) -> None:
        """Forget every series whose label has this value."""
        if label in self.labels:
            at = self.labels.index(label)
            with self._lock:
                self._series = {values: series for values, series in self._series.items() if values[at] != value}

    def lines(self, *, openmetrics: bool) -> Iterator[str]:
        """Head and series."""
        yield head(self.kind, self.name, self.text, openmetrics=openmetrics)
        for series in list(self._series.values()):
            yield from series.lines(exemplars=openmetrics)


@dataclass(frozen=True, slots=True)
class Reading:
    """A metric whose values are looked up at the scrape: label values → value. `kind`: gauge or counter."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    values: dict[tuple[str, ...], float] = field(default_factory=dict)
    kind: str = "gauge"

    def lines(self, *, openmetrics: bool) -> Iterator[str]:
        """Head and values."""
        yield head(self.kind, self.name, self.text, openmetrics=openmetrics)
        name = f"{self.name}_total" if self.kind == "counter" else self.name
        for values, value in self.values.items():
            yield f"{name}{label_text(self.labels, values)} {float(value)!r}\n"


class Registry:
    """All metrics of a worker. Series may be written from any thread."""

    def __init__(self) -> None:
        self._families: list[Family[CounterSeries] | Family[GaugeSeries] | Family[HistogramSeries]] = []
        self._sources: list[Callable[[], Iterable[Reading]]] = []

    def counter(self, name: str, text: str, *labels: str) -> Family[CounterSeries]:
        """A counter; its name goes without `_total`."""
        family = Family("counter", name, text, labels, CounterSeries)
        self._families.append(family)
        return family

    def gauge(self, name: str, text: str, *labels: str) -> Family[GaugeSeries]:
        """A gauge that is set when something happens."""
        family = Family("gauge", name, text, labels, GaugeSeries)
        self._families.append(family)
        return family

    def histogram(self, name: str, text: str, bounds: Sequence[float], *labels: str) -> Family[HistogramSeries]:
        """A histogram with these upper bounds, ascending."""
        family = Family("histogram", name, text, labels, partial(HistogramSeries, bounds=tuple(map(float, bounds))))
        self._families.append(family)
        return family

    def watch(self, source: Callable[[], Iterable[Reading]]) -> None:
        """Ask `source` at each scrape, in the thread of the scrape."""
        self._sources.append(source)

    def drop(self, label: str, value: str) -> None:
        """Forget every series with this label value: what it names is gone."""
        for family in self._families:
            family.drop(label, value)

    def text(self, *, openmetrics: bool = False) -> str:
        """Everything, as a scrape has it. Exemplars are in OpenMetrics only."""
        pieces: list[str] = []
        for family in self._families:
            pieces.extend(family.lines(openmetrics=openmetrics))
        for source in self._sources:
            for reading in source():
                pieces.extend(reading.lines(openmetrics=openmetrics))
        if openmetrics:
            pieces.append("# EOF\n")
        return "".join(pieces)


@lru_cache(maxsize=8192)  # readings have the same labels at every scrape
def label_text(labels: tuple[str, ...], values: tuple[str, ...]) -> str:
    """`{model="mlp",path="eager"}`, or nothing where there are no labels."""
    if not labels:
        return ""
    return "{" + ",".join(f'{label}="{value.translate(_ESCAPES)}"' for label, value in zip(labels, values, strict=True)) + "}"


def head(kind: str, name: str, text: str, *, openmetrics: bool) -> str:
    """A metric's two comment lines. The older format names a counter with its suffix."""
    shown = f"{name}_total" if kind == "counter" and not openmetrics else name
    return f"# HELP {shown} {text}\n# TYPE {shown} {kind}\n"
