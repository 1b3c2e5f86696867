"""One SERVER span for each inference: a unary call, or a message of a stream, whose span then lasts as long as the message takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry.trace import SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.telemetry import tracing
from service.telemetry.tracing import Tracer

if TYPE_CHECKING:  # generic for the type checker only
    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = grpc.aio.ServicerContext[Any, Any]
    _ServerInterceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    Handler = grpc.RpcMethodHandler
    Context = grpc.aio.ServicerContext
    _ServerInterceptor = grpc.aio.ServerInterceptor

Metadata = Iterable[tuple[str, str | bytes]]

_PROPAGATOR = TraceContextTextMapPropagator()
_HEADERS = ("traceparent", "tracestate")


@contextmanager
def traced(tracer: Tracer | None, method: str, metadata: Metadata, context: Context) -> Iterator[None]:
    """What runs inside is one request. Without a tracer nothing happens."""
    if tracer is None:
        yield
        return
    trace = tracer.begin(method, _caller(metadata))
    token = tracing.enter(trace)
    try:
        yield
    except asyncio.CancelledError:
        left_s = context.time_remaining()  # the client's deadline arrives as a cancellation, too
        passed = left_s is not None and left_s <= 0  # type: ignore[redundant-expr] # None where the client set none
        trace.blame("DEADLINE_EXCEEDED" if passed else "CANCELLED", None)
        raise
    finally:
        tracing.leave(token)
        tracer.finish(trace)


class TracingInterceptor(_ServerInterceptor):
    """Traces unary calls of some methods."""

    def __init__(self, tracer: Tracer, methods: frozenset[str]) -> None:
        self._tracer = tracer
        self._methods = methods

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]], handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        """Called by gRPC once for each call."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method.lstrip("/")
        serve = handler.unary_unary
        if method not in self._methods or serve is None:
            return handler
        metadata = handler_call_details.invocation_metadata

        async def served(request: object, context: Context) -> object:
            with traced(self._tracer, method, metadata, context):
                return await serve(request, context)  # type: ignore[arg-type] # the stubs know handlers of threads alone

        return grpc.unary_unary_rpc_method_handler(served, handler.request_deserializer, handler.response_serializer)


def blame(status: str, error: BaseException) -> None:
    """The request in hand ends with this status."""
    trace = tracing.current()
    if trace is not None:
        trace.blame(status, error)


def _caller(metadata: Metadata) -> SpanContext | None:
    headers: Mapping[str, str] = {name: value for name, value in metadata if name in _HEADERS and isinstance(value, str)}
    if "traceparent" not in headers:
        return None
    return get_current_span(_PROPAGATOR.extract(headers)).get_span_context()
