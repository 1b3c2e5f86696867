"""Sends traces to a collector, in a thread of its own.

A collector that is away, slow or broken costs traces, which are counted, and nothing else.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.semconv.attributes.service_attributes import SERVICE_NAME, SERVICE_VERSION

from service import __version__
from service.telemetry.spans import Builder
from service.telemetry.tracing import Finished

log = logging.getLogger(__name__)

EXPORT_TIMEOUT_S = 2.0
CLOSE_S = 1.5  # for what is left at the end
_LAST_S = 0.3
_WAITING = 2048  # traces
_AT_ONCE = 256  # traces in one call
_EVERY_S = 0.5

_INSTANCE_ID = "service.instance.id"


class Exporting:
    """A Sink that exports."""

    def __init__(self, exporter: SpanExporter, builder: Builder, dropped: Callable[[int], None]) -> None:
        self._exporter = exporter
        self._builder = builder
        self._dropped = dropped
        self._waiting: deque[Finished] = deque()
        self._wake = threading.Event()
        self._closing_at: float | None = None
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def put(self, finished: Finished) -> None:
        """See Sink."""
        if len(self._waiting) >= _WAITING or self._closing_at is not None:
            self._dropped(1)
            return
        self._waiting.append(finished)
        if len(self._waiting) == _AT_ONCE:
            self._wake.set()

    def drop(self, count: int = 1) -> None:
        """See Sink."""
        self._dropped(count)

    def close(self) -> None:
        """Export what is left, if the collector takes it at once."""
        self._closing_at = monotonic() + CLOSE_S
        self._wake.set()
        self._thread.join(CLOSE_S)
        self._exporter.shutdown()  # ends a call that hangs
        self._thread.join(_LAST_S)
        self._dropped(len(self._waiting))
        self._waiting.clear()

    def _run(self) -> None:
        while self._closing_at is None:
            self._wake.wait(_EVERY_S)
            self._wake.clear()
            self._export()
            while len(self._waiting) >= _AT_ONCE and self._closing_at is None:  # a stall has left more than one call takes
                self._export()
        while self._waiting and monotonic() < self._closing_at and not self._failing:
            self._export()

    def _export(self) -> None:
        traces = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
        if not traces:
            return
        try:
            spans: list[ReadableSpan] = [span for trace in traces for span in self._builder.spans(trace)]
            sent = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:
            log.exception("traces can't be exported")
            sent = False
        if not sent:
            self._dropped(len(traces))
        if sent is self._failing:  # once for each outage
            self._failing = not sent
            log.warning("traces: the collector takes them again" if sent else "traces: the collector does not take them; they are dropped")


def open_exporting(endpoint: str, worker: str, dropped: Callable[[int], None]) -> Exporting:
    """An exporter to an OTLP collector over gRPC at http://HOST:PORT, https://HOST:PORT or HOST:PORT. Connects with the first traces."""
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)  # it tells of every call that fails
    insecure = not endpoint.startswith("https://")
    exporter = OTLPSpanExporter(endpoint if "://" in endpoint else f"http://{endpoint}", insecure=insecure, timeout=EXPORT_TIMEOUT_S)
    resource = Resource.create({SERVICE_NAME: "graphcache", SERVICE_VERSION: __version__, _INSTANCE_ID: worker})
    return Exporting(exporter, Builder(resource, InstrumentationScope("graphcache", __version__)), dropped)
