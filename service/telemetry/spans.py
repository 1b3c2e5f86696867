"""Spans of what has ended, by the names of the interface. In the exporter's thread."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, time

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.semconv._incubating.attributes.rpc_attributes import RPC_METHOD, RPC_RESPONSE_STATUS_CODE, RPC_SYSTEM_NAME
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.semconv.attributes.exception_attributes import EXCEPTION_MESSAGE, EXCEPTION_TYPE
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from service.errors import ModelRaised
from service.messages import Outcome, Path
from service.models.spec import variant_text
from service.telemetry.tracing import BatchTrace, Finished, Operation, RequestTrace, Value

# Statuses that are the server's fault, by OpenTelemetry's conventions for gRPC servers; others are said by attributes alone.
_FAULTS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
_TEXT = 500  # characters of a detail or a message
_UNSET = Status(StatusCode.UNSET)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


@dataclass(frozen=True, slots=True)
class Builder:
    """Makes spans of one worker."""

    resource: Resource
    scope: InstrumentationScope

    def spans(self, finished: Finished) -> Iterator[ReadableSpan]:
        """The parent before its children; a batch once, with the first of its requests that is kept."""
        offset = time() - monotonic()
        if isinstance(finished, Operation):
            yield from self._operation(finished, offset)
            return
        yield from self._request(finished, offset)
        for batch in finished.batches:
            if not batch.exported:
                batch.exported = True
                yield self._batch(batch, finished, offset)

    def _request(self, trace: RequestTrace, offset: float) -> Iterator[ReadableSpan]:
        attributes: dict[str, Value] = {
            RPC_SYSTEM_NAME: "grpc",
            RPC_METHOD: trace.method,
            RPC_RESPONSE_STATUS_CODE: trace.status,
            "graphcache.outcome": trace.result,
        }
        if trace.model:
            attributes["graphcache.model"] = trace.model
        if trace.request_id:
            attributes["graphcache.request_id"] = trace.request_id[:_TEXT]
        if trace.outcome is not None:
            attributes.update(_served(trace.outcome))
            attributes["graphcache.parts"] = trace.outcome.parts
        if trace.nearest is not None:
            attributes["graphcache.nearest_bucket"] = str(trace.nearest)
        predicted = [batch.predicted_s for batch in trace.batches if batch.predicted_s is not None]
        if predicted and len(predicted) == len(trace.batches):
            attributes["graphcache.predicted_ms"] = sum(predicted) * 1e3
        if trace.status in _FAULTS:
            attributes[ERROR_TYPE] = trace.status
        events = () if trace.error is None else (_exception(trace.error, trace.ended + offset),)
        status = Status(StatusCode.ERROR) if trace.status in _FAULTS else _UNSET
        links = [Link(batch.context) for batch in trace.batches]
        context = _kept(trace.context)
        yield self._span(
            trace.method, context, trace.parent, trace.began, trace.ended, offset, attributes, SpanKind.SERVER, links, events, status
        )
        yield from self._stages(trace, context, offset)

    def _stages(self, trace: RequestTrace, parent: SpanContext, offset: float) -> Iterator[ReadableSpan]:
        waiting = trace.ended if trace.admitted is None else trace.admitted
        yield self._span("graphcache.admission", _child(parent), parent, trace.began, waiting, offset, {})
        if trace.admitted is None:
            return
        runs = trace.batches
        yield self._span("graphcache.queue", _child(parent), parent, waiting, runs[0].began if runs else trace.ended, offset, {})
        for batch in runs:
            name = "graphcache.replay" if batch.outcome.path is Path.REPLAY else "graphcache.fallback"
            brief = _brief(batch.outcome)
            yield self._span(name, _child(parent), parent, batch.began, batch.ended, offset, brief, links=[Link(batch.context)])

    def _batch(self, batch: BatchTrace, first: RequestTrace, offset: float) -> ReadableSpan:
        """Links to the request at hand and to those that were chosen at the beginning: others may never be seen."""
        attributes: dict[str, Value] = {
            **_brief(batch.outcome),
            "graphcache.model": first.model,
            "graphcache.path": str(batch.outcome.path),
            "graphcache.padding_ratio": batch.outcome.padding_ratio,
            "graphcache.batch_rows": batch.outcome.batch_rows,
            "graphcache.batch_requests": len(batch.requests),
        }
        eager = batch.outcome.path is Path.EAGER
        links = [Link(_kept(one.context)) for one in batch.requests if one is first or one.sampled or eager]
        return self._span("graphcache.batch", batch.context, None, batch.began, batch.ended, offset, attributes, links=links)

    def _operation(self, done: Operation, offset: float) -> Iterator[ReadableSpan]:
        root = SpanContext(random.getrandbits(128) or 1, random.getrandbits(64) or 1, is_remote=False, trace_flags=_SAMPLED)
        events = (Event("graphcache.decision", dict(done.decision), _ns(done.began + offset)),) if done.decision else ()
        attributes = dict(done.attributes)
        if done.problem:
            attributes["graphcache.problem"] = done.problem[:_TEXT]
        yield self._span(done.name, root, None, done.began, done.ended, offset, attributes, events=events)
        for step in done.steps:
            yield self._span(step.name, _child(root), root, step.began, step.ended, offset, {})

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        began: float,
        ended: float,
        offset: float,
        attributes: Mapping[str, Value],
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Link] = (),
        events: Sequence[Event] = (),
        status: Status = _UNSET,
    ) -> ReadableSpan:
        return ReadableSpan(
            name,
            context,
            parent,
            self.resource,
            attributes,
            events,
            links,
            kind,
            status=status,
            start_time=_ns(began + offset),
            end_time=_ns(max(began, ended) + offset),
            instrumentation_scope=self.scope,
        )


def _brief(outcome: Outcome) -> dict[str, Value]:
    """What a span below the SERVER span, which says it all, is worth finding by: each attribute costs some microseconds to send."""
    found: dict[str, Value] = {}
    if outcome.reason is not None:
        found["graphcache.fallback.reason"] = str(outcome.reason)
    if outcome.bucket is not None:
        found["graphcache.bucket"] = str(outcome.bucket)
    return found


def _served(outcome: Outcome) -> dict[str, Value]:
    """What spans say of an outcome."""
    found: dict[str, Value] = {
        "graphcache.variant": variant_text(outcome.variant),
        "graphcache.path": str(outcome.path),
        "graphcache.padding_ratio": outcome.padding_ratio,
        "graphcache.batch_rows": outcome.batch_rows,
        "graphcache.actual_ms": outcome.execute_s * 1e3,
    }
    if outcome.key:
        found["graphcache.key"] = outcome.key
    if outcome.reason is not None:
        found["graphcache.fallback.reason"] = str(outcome.reason)
        found["graphcache.fallback.detail"] = outcome.detail[:_TEXT]
    if outcome.bucket is not None:
        found["graphcache.bucket"] = str(outcome.bucket)
    if outcome.mode is not None:
        found["graphcache.mode"] = str(outcome.mode.mode)
        found["graphcache.mode.origin"] = outcome.mode.origin
        found["graphcache.mode.since"] = outcome.mode.since
    return found


def _exception(error: BaseException, at: float) -> Event:
    """The model's own errors by their type alone: their text may hold values of tensors."""
    if isinstance(error, ModelRaised):
        kind = type(error.error)
        return Event("exception", {EXCEPTION_TYPE: f"{kind.__module__}.{kind.__qualname__}"}, _ns(at))
    kind = type(error)
    return Event("exception", {EXCEPTION_TYPE: f"{kind.__module__}.{kind.__qualname__}", EXCEPTION_MESSAGE: str(error)[:_TEXT]}, _ns(at))


def _kept(context: SpanContext) -> SpanContext:
    """Marked as sampled, as every span that is exported is."""
    return SpanContext(context.trace_id, context.span_id, is_remote=False, trace_flags=_SAMPLED, trace_state=context.trace_state)


def _child(parent: SpanContext) -> SpanContext:
    span_id = random.getrandbits(64) or 1
    return SpanContext(parent.trace_id, span_id, is_remote=False, trace_flags=_SAMPLED, trace_state=parent.trace_state)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
