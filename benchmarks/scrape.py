"""What a scrape of /metrics costs with 20 models of 30 buckets each, beside prometheus_client writing the same series.

    python -m benchmarks.scrape

Prints the number of series and the median of each in milliseconds, taken turn about in one run.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cachepolicy.buckets import Bucket
from cachepolicy.reasons import FallbackReason
from service.messages import Outcome, Path
from service.telemetry.metrics import Metrics

CLASSES = ("tiny", "small", "medium", "above")


def filled(models: int, buckets: int) -> Metrics:
    """Every model with traffic of every size class on both paths, five reasons, and a hit on every bucket."""
    metrics = Metrics()
    for model in (f"model{number}" for number in range(models)):
        for rows in range(1, buckets + 1):
            metrics.replayed(model, Bucket.of(batch=rows), 0.25, 0.001)
        for size in CLASSES:
            metrics.served(model, Outcome(Path.REPLAY, queue_s=0.001, execute_s=0.002), size, 0.004)
            for reason in list(FallbackReason)[:5]:
                metrics.served(model, Outcome(Path.EAGER, reason, queue_s=0.001, execute_s=0.002), size, 0.004)
                metrics.lost(model, reason, 0.001)
    return metrics


def rival(text: str) -> CollectorRegistry:
    """The same series in prometheus_client."""
    registry = CollectorRegistry()
    for family in text_string_to_metric_families(text):
        samples = [sample for sample in family.samples if "le" not in sample.labels and not sample.name.endswith("_sum")]
        if not samples:
            continue
        labels = list(samples[0].labels)
        if family.type == "counter":
            counter = Counter(family.name, family.documentation, labels, registry=registry)
            for sample in samples:
                (counter.labels(**sample.labels) if labels else counter).inc(sample.value)
        elif family.type == "gauge":
            gauge = Gauge(family.name, family.documentation, labels, registry=registry)
            for sample in samples:
                (gauge.labels(**sample.labels) if labels else gauge).set(sample.value)
        elif family.type == "histogram":
            bounds = sorted({float(s.labels["le"]) for s in family.samples if "le" in s.labels})
            histogram = Histogram(family.name, family.documentation, labels, registry=registry, buckets=bounds)
            for sample in samples:
                (histogram.labels(**sample.labels) if labels else histogram).observe(0.002)
    return registry


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--buckets", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    disable_created_metrics()  # type: ignore[no-untyped-call]
    metrics = filled(arguments.models, arguments.buckets)
    text = metrics.registry.text()
    other = rival(text)
    ways: dict[str, Callable[[], bytes]] = {
        "ours": lambda: metrics.registry.text().encode(),
        "ours, OpenMetrics": lambda: metrics.registry.text(openmetrics=True).encode(),
        "prometheus_client": lambda: generate_latest(other),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            started = perf_counter()
            way()
            taken[name].append(perf_counter() - started)
    print(f"{arguments.models} models, {arguments.buckets} buckets: {_series(text)} series, {len(text) >> 10} KiB")
    for name, seconds in taken.items():
        print(f"  {name:18} {statistics.median(seconds) * 1e3:6.2f} ms")


def _series(text: str) -> int:
    return sum(not line.startswith("#") for line in text.splitlines())


if __name__ == "__main__":
    main()
