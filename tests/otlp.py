"""A collector: the official servicer on a real port, which keeps what it gets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceServicer, add_TraceServiceServicer_to_server
from opentelemetry.proto.trace.v1 import trace_pb2

Answer = Callable[["Collector", Any], None]  # may raise, wait, or abort by the context


@dataclass(frozen=True, slots=True)
class Span:
    """A span as it came over the wire."""

    message: trace_pb2.Span
    resource: dict[str, str]

    @property
    def name(self) -> str:
        """Its name."""
        return self.message.name

    @property
    def trace(self) -> str:
        """Its trace, in hexadecimal digits."""
        return self.message.trace_id.hex()

    @property
    def id(self) -> str:
        """Its own id, in hexadecimal digits."""
        return self.message.span_id.hex()

    @property
    def parent(self) -> str:
        """Its parent's id; "" for a root."""
        return self.message.parent_span_id.hex()

    @property
    def attributes(self) -> dict[str, object]:
        """By name."""
        return {item.key: getattr(item.value, item.value.WhichOneof("value") or "") for item in self.message.attributes}

    @property
    def links(self) -> list[str]:
        """Ids of linked spans."""
        return [link.span_id.hex() for link in self.message.links]


@dataclass(slots=True)
class Collector(TraceServiceServicer):
    """What came in."""

    address: str = ""
    answer: Answer = lambda *_: None
    gone: threading.Event = field(default_factory=threading.Event)
    calls: int = 0
    spans: list[Span] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:  # noqa: N802
        """Called by gRPC."""
        self.calls += 1
        self.answer(self, context)
        with self._changed:
            for group in request.resource_spans:
                resource = {item.key: item.value.string_value for item in group.resource.attributes}
                self.spans += [Span(span, resource) for scope in group.scope_spans for span in scope.spans]
            self._changed.notify_all()
        return ExportTraceServiceResponse()

    def until(self, found: Callable[[list[Span]], bool], at_most_s: float = 20.0) -> list[Span]:
        """All spans, once they are what is waited for."""
        with self._changed:
            assert self._changed.wait_for(lambda: found(self.spans), at_most_s), [span.name for span in self.spans]
            return list(self.spans)

    def named(self, name: str) -> list[Span]:
        """Spans of this name."""
        return [span for span in list(self.spans) if span.name == name]

    def of_trace(self, trace: str) -> list[Span]:
        """A trace's spans."""
        return [span for span in list(self.spans) if span.trace == trace]


@contextmanager
def collecting(address: str = "127.0.0.1:0") -> Iterator[Collector]:
    """A collector that listens."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(4))
    add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port(address)
    collector.address = f"127.0.0.1:{port}"
    server.start()
    try:
        yield collector
    finally:
        collector.gone.set()  # whoever keeps a call waiting
        server.stop(0).wait()


def settle(at_most_s: float, done: Callable[[], bool]) -> bool:
    """Wait until something holds."""
    until = monotonic() + at_most_s
    while not done() and monotonic() < until:
        sleep(0.02)
    return done()
