"""The spans of one request, through the OpenTelemetry API: without an SDK in the process they cost next to nothing.

The SERVER span, sampling and export are added around this by whoever sets a tracer provider.
"""

from __future__ import annotations

from time import time_ns

from opentelemetry import trace

from service.messages import Outcome, Path

_tracer = trace.get_tracer("graphcache")


def record_execution(model: str, outcome: Outcome) -> None:
    """One span for the execution of a request, just ended: `graphcache.replay` or `graphcache.fallback`, so that the name shows it."""
    end = time_ns()
    replayed = outcome.path is Path.REPLAY
    span = _tracer.start_span("graphcache.replay" if replayed else "graphcache.fallback", start_time=end - int(outcome.execute_s * 1e9))
    if span.is_recording():
        span.set_attributes(attributes(model, outcome))
    span.end(end)


def attributes(model: str, outcome: Outcome) -> dict[str, str | float | int]:
    """What spans say of an outcome, by the names of the interface."""
    found: dict[str, str | float | int] = {
        "graphcache.model": model,
        "graphcache.variant": ",".join(f"{name}={value}" for name, value in outcome.variant),
        "graphcache.outcome": str(outcome.path),
        "graphcache.path": str(outcome.path),
        "graphcache.padding_ratio": outcome.padding_ratio,
        "graphcache.batch_rows": outcome.batch_rows,
        "graphcache.key": outcome.key,
        "graphcache.actual_ms": outcome.execute_s * 1e3,
    }
    if outcome.reason is not None:
        found["graphcache.fallback.reason"] = str(outcome.reason)
        found["graphcache.fallback.detail"] = outcome.detail
    if outcome.bucket is not None:
        found["graphcache.bucket"] = str(outcome.bucket)
    if outcome.mode is not None:
        found["graphcache.mode"] = str(outcome.mode.mode)
        found["graphcache.mode.origin"] = outcome.mode.origin
        found["graphcache.mode.since"] = outcome.mode.since
    return found
