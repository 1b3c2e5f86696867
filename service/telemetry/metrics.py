"""Prometheus metrics by the names of the interface. Every label comes from a closed or configured set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachepolicy.buckets import Bucket
from cachepolicy.reasons import FallbackReason
from service.messages import Outcome, Path
from service.telemetry.instruments import CounterSeries, HistogramSeries, Registry

if TYPE_CHECKING:
    from service.backends.base import CaptureTimings

_SECONDS = (25e-6, 50e-6, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_CAPTURE_SECONDS = (1e-3, 5e-3, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ERROR_RATIOS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_LAGS = (1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.5, 1)
UNKNOWN_MODEL = "unknown"  # one label for all names that are not loaded, so that callers can't grow the series
SLOWER_REPLAY = "slower_replay"  # beside the fallback reasons: a replay that took longer than eager was predicted to

_SIZE_CLASSES = ((1 / 64, "tiny"), (1 / 8, "small"), (1.0, "medium"))  # by the share of the largest bucket's volume
ABOVE = "above"  # larger than the largest bucket: served in parts, or eagerly


def size_class(volume: int, largest: int) -> str:
    """One of four classes, by how much of the model's largest bucket a request would fill."""
    return next((name for share, name in _SIZE_CLASSES if volume <= share * largest), ABOVE)


@dataclass(frozen=True, slots=True)
class _PathSeries:
    """What every answer of one model, path and size class writes to."""

    total: HistogramSeries
    requests: CounterSeries
    queue: HistogramSeries
    execute: HistogramSeries


class Metrics:
    """One worker's metrics, in a registry of their own. May be written from any thread."""

    def __init__(self) -> None:
        self.registry = r = Registry()
        self._requests = r.counter("graphcache_requests", "Requests by outcome", "model", "outcome")
        self._fallbacks = r.counter("graphcache_fallbacks", "Eager requests by reason", "model", "reason")
        self._rejections = r.counter("graphcache_rejections", "Refused requests", "reason", "priority")
        self._request = r.histogram("graphcache_request_seconds", "Time from arrival to answer", _SECONDS, "model", "path", "size_class")
        self._queue = r.histogram("graphcache_queue_seconds", "Time from arrival to start", _SECONDS, "model", "path")
        self._execute = r.histogram("graphcache_execute_seconds", "Time of the batch on the lane", _SECONDS, "model", "path")
        self._hits = r.counter("graphcache_bucket_hits", "Replays by bucket", "model", "bucket")
        self._elements = r.counter("graphcache_bucket_elements", "Replayed elements, real ones and padding", "model", "bucket", "kind")
        self._saved = r.counter("graphcache_saved_seconds", "Seconds that replays took less than eager is predicted to", "model", "bucket")
        self._lost = r.counter(
            "graphcache_lost_seconds", "Seconds that eager runs are predicted to have cost more, by reason", "model", "reason"
        )
        self._captures = r.counter("graphcache_captures", "Captures by result", "model", "result")
        self._unlocked = r.counter(
            "graphcache_captures_unlocked", "Captures without the host's lock: another worker held it for too long, or it can't be used"
        ).of()
        self._capture_seconds = r.histogram("graphcache_capture_seconds", "Time of a capture's phases", _CAPTURE_SECONDS, "phase")
        self._mismatches = r.counter("graphcache_audit_mismatches", "Served replays that eager contradicts", "model")
        self._shadow = r.counter("graphcache_shadow_decisions", "What the policy would have done, in shadow mode", "model", "action")
        self._evictions = r.counter("graphcache_evictions", "Evicted graphs", "model")
        self._padding = r.gauge("graphcache_padding_ratio", "Padded per real elements of the last replay", "model")
        self._error = r.histogram(
            "graphcache_prediction_error_ratio", "Predicted against measured run time: |m - p| / p", _ERROR_RATIOS, "path"
        )
        self.loop_lag = r.histogram("graphcache_loop_lag_seconds", "How late the event loop runs what is due", _LAGS).of()
        self._dropped = r.counter("graphcache_telemetry_dropped", "Traces that were worth keeping and could not be kept")
        self._dropped.of()
        self._store_errors = r.counter(
            "graphcache_profile_store_errors", "Trouble with the profile store: reads, writes, records that are not valid", "op"
        )
        self._prewarm = r.gauge("graphcache_prewarm_graphs", "Graphs captured before traffic, by what became of them", "state")
        self._prewarm_seconds = r.gauge("graphcache_prewarm_seconds", "How long capturing before traffic took").of()
        self._paths: dict[tuple[str, Path, str], _PathSeries] = {}

    # -- requests

    def served(self, model: str, outcome: Outcome, size: str, total_s: float, trace_id: str = "") -> None:
        """Count one answered request of a size class; `total_s` is from arrival to answer, the trace becomes an exemplar."""
        key = (model, outcome.path, size)
        series = self._paths.get(key) or self._path(*key)
        series.requests.inc()
        series.queue.observe(outcome.queue_s)
        series.execute.observe(outcome.execute_s, trace_id)
        series.total.observe(total_s, trace_id)
        if outcome.reason is not None:
            self._fallbacks.of(model, str(outcome.reason)).inc(1.0, trace_id)
        else:
            self._padding.of(model).set(outcome.padding_ratio)

    def failed(self, model: str, outcome: str) -> None:
        """Count a request that got no answer: rejected, expired, cancelled or error."""
        self._requests.of(model, outcome).inc()

    def rejected(self, reason: str) -> None:
        """Count a refusal of request admission."""
        self._rejections.of(reason, "default").inc()

    # -- batches

    def replayed(self, model: str, bucket: Bucket, padding_ratio: float, saved_s: float) -> None:
        """Count one replay of a batch. `saved_s` is the prediction of eager less what the replay took.

        Where that is negative it is a loss: a counter only grows, and what was really saved is the difference of both.
        """
        name = str(bucket)
        self._hits.of(model, name).inc()
        real = round(bucket.volume / (1 + padding_ratio))
        self._elements.of(model, name, "real").inc(real)
        self._elements.of(model, name, "padding").inc(bucket.volume - real)
        if saved_s > 0:
            self._saved.of(model, name).inc(saved_s)
        elif saved_s < 0:
            self._lost.of(model, SLOWER_REPLAY).inc(-saved_s)

    def lost(self, model: str, reason: FallbackReason, seconds: float) -> None:
        """Seconds that an eager batch is predicted to have cost more than a replay would have."""
        self._lost.of(model, str(reason)).inc(seconds)

    def predicted(self, path: Path, predicted_s: float | None, measured_s: float) -> None:
        """Compare a prediction of the cost table with the run; nothing where nothing was predicted."""
        if predicted_s:
            self._error.of(str(path)).observe(abs(measured_s - predicted_s) / predicted_s)

    # -- graphs

    def capture(self, model: str, result: str) -> None:
        """Count one capture: "ok" or the refusal's reason."""
        self._captures.of(model, result).inc()

    def capture_unlocked(self) -> None:
        """Count a capture that may have run beside one of another worker of this host."""
        self._unlocked.inc()

    def capture_timings(self, timings: CaptureTimings, verify: float, measure: float) -> None:
        """Observe the phases of one capture, in seconds."""
        for phase in ("warm_up", "capture", "instantiate", "first_launch"):
            self._capture_seconds.of(phase).observe(getattr(timings, phase))
        self._capture_seconds.of("verify").observe(verify)
        self._capture_seconds.of("measure").observe(measure)

    def shadow(self, model: str, action: str) -> None:
        """Count what the policy would have done: capture, evict or rebuild."""
        self._shadow.of(model, action).inc()

    def audit_mismatch(self, model: str) -> None:
        """Count a served replay that was wrong: an alarm."""
        self._mismatches.of(model).inc()

    def profile_store_error(self, op: str) -> None:
        """Count trouble with the profile store: "read", "write", or a "record" that is not valid."""
        self._store_errors.of(op).inc()

    def telemetry_dropped(self, count: int) -> None:
        """Count traces that were worth keeping and could not be kept."""
        self._dropped.of().inc(count)

    def prewarm(self, planned: int, captured: int, refused: int, seconds: float) -> None:
        """How far capturing before traffic has come."""
        for state, count in (("planned", planned), ("captured", captured), ("refused", refused)):
            self._prewarm.of(state).set(count)
        self._prewarm_seconds.set(seconds)

    def eviction(self, model: str) -> None:
        """Count one evicted graph."""
        self._evictions.of(model).inc()

    # -- reading back

    def capture_seconds(self, phase: str) -> float:
        """Seconds spent on a phase of all captures."""
        return self._capture_seconds.of(phase).sum

    def outcomes(self, model: str) -> dict[str, int]:
        """Requests of a model by outcome."""
        return {outcome: int(series.value) for (name, outcome), series in self._requests.items() if name == model}

    def fallbacks(self, model: str) -> dict[FallbackReason, int]:
        """Eager requests of a model by reason."""
        return {reason: int(series.value) for reason in FallbackReason if (series := self._fallbacks.get(model, str(reason))) is not None}

    def lost_seconds(self, model: str) -> dict[str, float]:
        """Seconds lost by a model, by reason."""
        return {reason: series.value for (name, reason), series in self._lost.items() if name == model}

    def padding_ratio(self, model: str, bucket: Bucket) -> float:
        """Padded per real elements of all replays of a bucket, its variants together."""
        name = str(bucket)
        real, padding = self._elements.of(model, name, "real").value, self._elements.of(model, name, "padding").value
        return padding / real if real else 0.0

    def saved_seconds(self, model: str) -> float:
        """Seconds saved by a model's replays, those that were slower than eager left aside."""
        return sum(series.value for (name, _), series in self._saved.items() if name == model)

    def forget(self, model: str) -> None:
        """No version of this model is up any more: its series end."""
        self._paths = {key: series for key, series in self._paths.items() if key[0] != model}
        self.registry.drop("model", model)

    def _path(self, model: str, path: Path, size: str) -> _PathSeries:
        labels = (model, str(path))
        found = _PathSeries(self._request.of(*labels, size), self._requests.of(*labels), self._queue.of(*labels), self._execute.of(*labels))
        self._paths[model, path, size] = found
        return found
