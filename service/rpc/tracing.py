"""One SERVER span for each inference: a unary call, or a message of a stream, whose span then lasts as long as the message takes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import grpc
from opentelemetry.trace import SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.telemetry import tracing
from service.telemetry.tracing import Tracer

if TYPE_CHECKING:  # generic for the type checker only
    Context = grpc.aio.ServicerContext[Any, Any]
else:
    Context = grpc.aio.ServicerContext


class HasTracer(Protocol):
    """A servicer that may trace."""

    tracer: Tracer | None


Servicer = TypeVar("Servicer", bound=HasTracer)
Request = TypeVar("Request")
Reply = TypeVar("Reply")
Method = Callable[[Servicer, Request, Context], Awaitable[Reply]]
Traced = Callable[[Servicer, Request, Context], Coroutine[Any, Any, Reply]]
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


def traces(name: str) -> Callable[[Method[Servicer, Request, Reply]], Traced[Servicer, Request, Reply]]:
    """Trace a unary method of a servicer under this name.

    Not by an interceptor: gRPC's own way through any of them costs more than all that is noted (docs/decisions/0060).
    """

    def decorate(method: Method[Servicer, Request, Reply]) -> Traced[Servicer, Request, Reply]:
        @functools.wraps(method)
        async def served(servicer: Servicer, request: Request, context: Context) -> Reply:
            if servicer.tracer is None:
                return await method(servicer, request, context)
            with traced(servicer.tracer, name, context.invocation_metadata() or (), context):
                return await method(servicer, request, context)

        return served

    return decorate


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
