"""Prometheus metrics by the names of the interface. Every label comes from a closed or configured set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from service.messages import GraphInfo, GraphMode, ModeState, Outcome

if TYPE_CHECKING:
    from service.backends.base import CaptureTimings

_SECONDS = (25e-6, 50e-6, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
UNKNOWN_MODEL = "unknown"  # one label for all names that are not loaded, so that callers can't grow the series


class Metrics:
    """One worker's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter("graphcache_requests", "Requests by outcome", ["model", "outcome"], registry=registry)
        self._fallbacks = Counter("graphcache_fallbacks", "Eager requests by reason", ["model", "reason"], registry=registry)
        self._rejections = Counter("graphcache_rejections", "Refused requests", ["reason", "priority"], registry=registry)
        self._queue = Histogram(
            "graphcache_queue_seconds", "Time from arrival to start", ["model", "path"], registry=registry, buckets=_SECONDS
        )
        self._execute = Histogram(
            "graphcache_execute_seconds", "Time of the batch on the lane", ["model", "path"], registry=registry, buckets=_SECONDS
        )
        self._hits = Counter("graphcache_bucket_hits", "Replays by bucket", ["model", "bucket"], registry=registry)
        self._saved = Counter("graphcache_saved_seconds", "Seconds saved by replay", ["model", "bucket"], registry=registry)
        self._captures = Counter("graphcache_captures", "Captures by result", ["model", "result"], registry=registry)
        self._capture_seconds = Histogram("graphcache_capture_seconds", "Time of a capture's phases", ["phase"], registry=registry)
        self._mismatches = Counter("graphcache_audit_mismatches", "Served replays that eager contradicts", ["model"], registry=registry)
        self._shadow = Counter(
            "graphcache_shadow_decisions", "What the policy would have done, in shadow mode", ["model", "action"], registry=registry
        )
        self._evictions = Counter("graphcache_evictions", "Evicted graphs", ["model"], registry=registry)
        self._padding = Gauge("graphcache_padding_ratio", "Padded per real elements of the last replay", ["model"], registry=registry)

    def served(self, model: str, outcome: Outcome) -> None:
        """Count one answered request."""
        path = str(outcome.path)
        self._requests.labels(model, path).inc()
        self._queue.labels(model, path).observe(outcome.queue_s)
        self._execute.labels(model, path).observe(outcome.execute_s)
        if outcome.reason is not None:
            self._fallbacks.labels(model, str(outcome.reason)).inc()
        else:
            self._padding.labels(model).set(outcome.padding_ratio)

    def replayed(self, model: str, bucket: str, saved_s: float) -> None:
        """Count one replay of a batch."""
        self._hits.labels(model, bucket).inc()
        if saved_s > 0:
            self._saved.labels(model, bucket).inc(saved_s)

    def failed(self, model: str, outcome: str) -> None:
        """Count a request that got no answer: rejected, expired, cancelled or error."""
        self._requests.labels(model, outcome).inc()

    def rejected(self, reason: str) -> None:
        """Count a refusal of request admission."""
        self._rejections.labels(reason, "default").inc()

    def capture(self, model: str, result: str) -> None:
        """Count one capture: "ok" or the refusal's reason."""
        self._captures.labels(model, result).inc()

    def capture_timings(self, timings: CaptureTimings, verify: float, measure: float) -> None:
        """Observe the phases of one capture, in seconds."""
        for phase in ("warm_up", "capture", "instantiate", "first_launch"):
            self._capture_seconds.labels(phase).observe(getattr(timings, phase))
        self._capture_seconds.labels("verify").observe(verify)
        self._capture_seconds.labels("measure").observe(measure)

    def shadow(self, model: str, action: str) -> None:
        """Count what the policy would have done: capture, evict or rebuild."""
        self._shadow.labels(model, action).inc()

    def audit_mismatch(self, model: str) -> None:
        """Count a served replay that was wrong: an alarm."""
        self._mismatches.labels(model).inc()

    def eviction(self, model: str) -> None:
        """Count one evicted graph."""
        self._evictions.labels(model).inc()

    def watch(self, snapshot: Callable[[], Snapshot]) -> None:
        """Report the state that `snapshot` gives at each scrape."""
        self.registry.register(_StateCollector(snapshot))


@dataclass(frozen=True, slots=True)
class ModeInForce:
    """The graph mode of one variant of a model."""

    model: str
    variant: str
    state: ModeState


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What gauges show."""

    graphs: Sequence[GraphInfo]
    modes: Sequence[ModeInForce]
    budget: int
    used: int
    reusable: int
    waiting: int
    running: int


class _StateCollector(Collector):
    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called at each scrape."""
        now = self._snapshot()
        graphs = GaugeMetricFamily("graphcache_graphs", "Graphs by state", labels=["model", "state"])
        size = GaugeMetricFamily("graphcache_graph_bytes", "Bytes of resident graphs by model, arenas apart", labels=["model"])
        counts: dict[tuple[str, str], int] = {}
        sizes: dict[str, int] = {}
        for graph in now.graphs:
            counts[graph.model, graph.state] = counts.get((graph.model, graph.state), 0) + 1
            sizes[graph.model] = sizes.get(graph.model, 0) + graph.bytes
        for labels, count in counts.items():
            graphs.add_metric(labels, count)
        for model, value in sizes.items():
            size.add_metric([model], value)
        off = GaugeMetricFamily("graphcache_graphs_off", "Variants switched off, by who did it", labels=["model", "origin"])
        mode = GaugeMetricFamily(
            "graphcache_mode_since", "Epoch seconds since when a mode is in force", labels=["model", "variant", "mode", "origin"]
        )
        offs: dict[tuple[str, str], int] = {}
        for item in now.modes:
            key = (item.model, item.state.origin)
            offs[key] = offs.get(key, 0) + (item.state.mode is GraphMode.NONE)
            mode.add_metric([item.model, item.variant, str(item.state.mode), item.state.origin], item.state.since)
        for labels, count in offs.items():
            off.add_metric(labels, count)
        yield from (graphs, size, off, mode)
        yield GaugeMetricFamily("graphcache_budget_bytes", "The cache's budget", value=now.budget)
        yield GaugeMetricFamily("graphcache_used_bytes", "Bytes that resident graphs take, arenas included", value=now.used)
        yield GaugeMetricFamily("graphcache_reusable_bytes", "Bytes that the driver keeps for later graphs", value=now.reusable)
        yield GaugeMetricFamily("graphcache_requests_waiting", "Requests waiting for their batch", value=now.waiting)
        yield GaugeMetricFamily("graphcache_requests_running", "Batches on the lane", value=now.running)
