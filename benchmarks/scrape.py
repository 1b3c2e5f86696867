"""What a scrape of /metrics costs with 20 models of 30 buckets each, beside prometheus_client writing the same series.

    python benchmarks/scrape.py

A worker on the CPU with its real cache, filled with entries that nobody replays, and counters as after traffic of every kind. Prints the
number of series and, taken turn about in one run, the median and the fastest of: the text alone, a scrape over the socket,
prometheus_client.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from time import monotonic, perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cachepolicy.cache import GraphEntry
from cachepolicy.reasons import FallbackReason
from service.config import load
from service.messages import Outcome
from service.messages import Path as Served
from service.serving import Node, assemble
from service.telemetry.http import MetricsServer, View

CLASSES = ("tiny", "small", "medium", "above")
MODEL = """
  - name: model{number}
    factory: service.models.demo:adapters
    inputs: {{x: {{datatype: FP32, shape: [batch, 128]}}}}
    outputs: {{y: {{datatype: FP32, shape: [batch, 128]}}}}
    axes: {{batch: {{max: {buckets}, buckets: {sizes}}}}}
    rows: independent
    variants: {{adapter: [base, legal, medical]}}
"""


async def filled(models: int, buckets: int, folder: Path) -> Node:
    """Every model with traffic of every size class on both paths, five reasons, and a graph and hits for every bucket."""
    sizes = list(range(1, buckets + 1))
    path = folder / "worker.yaml"
    path.write_text(
        "worker: {device: cpu}\nprofile_store: none\ncache: {capture: {background: false}}\nmodels:"
        + "".join(MODEL.format(number=number, buckets=buckets, sizes=sizes) for number in range(models))
    )
    config = load(path, [])
    node = assemble(config)
    for model in config.models:
        await node.admin.load_config(model)
    metrics = node.worker.metrics
    for served in node.worker.registry.all():
        name = served.spec.name
        for bucket in served.ladder.buckets():
            metrics.replayed(name, bucket, 0.25, 0.001)
            key = served.key(served.spec.all_variants()[0], bucket)
            node.capturer.cache.insert(GraphEntry(key, None, 1000), monotonic())
        for size in CLASSES:
            metrics.served(name, Outcome(Served.REPLAY, queue_s=0.001, execute_s=0.002), size, 0.004)
            for reason in list(FallbackReason)[:5]:
                metrics.served(name, Outcome(Served.EAGER, reason, queue_s=0.001, execute_s=0.002), size, 0.004)
                metrics.lost(name, reason, 0.001)
    return node


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


def measure(node: Node, rounds: int) -> None:
    """Print the figures."""
    registry, observer = node.worker.metrics.registry, node.observer
    server = MetricsServer(View(registry, observer.journal, observer.snapshot, lambda: True, dict))
    address = f"http://{server.start('127.0.0.1:0')}/metrics"
    text = registry.text()
    other = rival(text)

    def scrape() -> bytes:
        with urllib.request.urlopen(address) as answer:
            body: bytes = answer.read()
        return body

    ways: dict[str, Callable[[], bytes]] = {
        "text": lambda: registry.text().encode(),
        "OpenMetrics": lambda: registry.text(openmetrics=True).encode(),
        "scrape": scrape,
        "prometheus_client": lambda: generate_latest(other),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            started = perf_counter()
            way()
            taken[name].append(perf_counter() - started)
    series = sum(not line.startswith("#") for line in text.splitlines())
    print(f"{len(node.worker.registry.all())} models, {len(node.capturer.cache)} graphs: {series} series, {len(text) >> 10} KiB")
    for name, seconds in taken.items():
        print(f"  {name:18} median {statistics.median(seconds) * 1e3:6.2f} ms, fastest {min(seconds) * 1e3:6.2f} ms")
    server.stop()


async def main() -> None:
    """Fill a worker and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--buckets", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=50)
    arguments = parser.parse_args()
    disable_created_metrics()  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as folder:
        node = await filled(arguments.models, arguments.buckets, Path(folder))
        await asyncio.to_thread(measure, node, arguments.rounds)
        for served in node.worker.registry.all():  # nobody made these graphs, so nobody could destroy them
            node.capturer.cache.drop(served.signature(served.spec.all_variants()[0]))
        node.close()


if __name__ == "__main__":
    asyncio.run(main())
