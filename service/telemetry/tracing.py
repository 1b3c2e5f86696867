"""What is noted of a request while it runs, and whether its trace is kept. Spans are made of it later, in a thread of their own.

Nothing is decided before the end: how a request was served is known by then, and so is whether it is worth keeping. A request that is
not kept has cost two random numbers and a few assignments. docs/decisions/0060.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

from opentelemetry.trace import SpanContext, TraceFlags, TraceState, format_trace_id

from cachepolicy.buckets import Bucket
from service.choices import Keep
from service.messages import Outcome, Path

_TRACE_BITS = (1 << 63) - 1  # of a trace id, that decide by ratio, as OpenTelemetry's own sampler has it

Value = str | bool | int | float


@dataclass(slots=True, eq=False)
class BatchTrace:
    """One run on the lane. It has a trace of its own, and links to those of its requests. Times are monotonic seconds."""

    context: SpanContext
    began: float
    ended: float
    outcome: Outcome
    predicted_s: float | None
    requests: Sequence[RequestTrace]
    exported: bool = False  # its spans were made; asked by the exporter's thread alone


@dataclass(slots=True, eq=False)
class RequestTrace:
    """One call, or one message of a stream. Times are monotonic seconds; None where the request did not come so far."""

    method: str  # package.Service/Method
    context: SpanContext
    parent: SpanContext | None
    keep: frozenset[Keep] = frozenset()  # what is kept although it was not sampled
    began: float = field(default_factory=monotonic)
    admitted: float | None = None
    ended: float = 0.0
    model: str = ""
    request_id: str = ""
    result: str = "error"  # an outcome of the interface
    outcome: Outcome | None = None
    nearest: Bucket | None = None
    batches: list[BatchTrace] = field(default_factory=list)
    status: str = "OK"  # a gRPC status
    error: BaseException | None = None

    @property
    def trace_id(self) -> str:
        """In hexadecimal digits."""
        return format_trace_id(self.context.trace_id)

    @property
    def sampled(self) -> bool:
        """Chosen at the beginning, by its caller or by ratio."""
        return self.context.trace_flags.sampled

    @property
    def seconds(self) -> float:
        """From the request's arrival to its end."""
        return self.ended - self.began

    def kept_for(self, kind: Keep) -> bool:
        """Whether the trace of such a request is kept, the allowance permitting."""
        return self.sampled or kind in self.keep

    def blame(self, status: str, error: BaseException | None) -> None:
        """The request ends with this status."""
        self.status, self.error = status, error


@dataclass(frozen=True, slots=True)
class Step:
    """A part of an operation."""

    name: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Operation:
    """What the worker did of its own accord: a capture, an eviction, a prewarm. `decision` is what made it do so."""

    name: str
    began: float
    ended: float
    attributes: Mapping[str, Value]
    decision: Mapping[str, Value] = field(default_factory=dict)
    steps: Sequence[Step] = ()
    problem: str = ""


Finished = RequestTrace | Operation


class Sink(Protocol):
    """Where finished traces go."""

    def put(self, finished: Finished) -> None:
        """Take it, or drop and count it; never waits."""
        ...

    def drop(self, count: int = 1) -> None:
        """Count what was given up before it came here."""
        ...


_current: ContextVar[RequestTrace | None] = ContextVar("trace", default=None)
current = _current.get  # the trace of the request in hand; None where none is made
enter = _current.set
leave = _current.reset


class Tracer:
    """Begins and ends traces. Lives on the event loop; `operation` may be called from any thread."""

    def __init__(self, sink: Sink, *, ratio: float, keep: frozenset[Keep], per_second: float = 50.0) -> None:
        self._sink = sink
        self._bound = round(ratio * (_TRACE_BITS + 1))
        self._keep = keep
        self._allowance = Allowance(per_second)
        self._slow = Slow()

    def begin(self, method: str, parent: SpanContext | None) -> RequestTrace:
        """A request arrived; `parent` is its caller's span."""
        if parent is not None and parent.is_valid:
            trace_id, sampled, state = parent.trace_id, parent.trace_flags.sampled, parent.trace_state
        else:
            parent = None
            trace_id = random.getrandbits(128) or 1
            sampled, state = trace_id & _TRACE_BITS < self._bound, None
        return RequestTrace(method, _context(trace_id, sampled=sampled, state=state), parent, self._keep)

    def finish(self, trace: RequestTrace) -> None:
        """It ended: keep it, or let it go."""
        trace.ended = monotonic()
        slow = self._slow.is_slow(trace)
        if trace.sampled:
            self._sink.put(trace)
        elif self._worth_keeping(trace, slow):
            if self._allowance.take(trace.ended):
                self._sink.put(trace)
            else:
                self._sink.drop()

    def operation(self, operation: Operation) -> None:
        """The worker did something of its own accord."""
        self._sink.put(operation)

    def _worth_keeping(self, trace: RequestTrace, slow: bool) -> bool:
        if trace.outcome is None:
            return Keep.ERROR in self._keep
        return (Keep.FALLBACK in self._keep and trace.outcome.path is Path.EAGER) or (Keep.SLOW in self._keep and slow)


@dataclass(slots=True)
class Allowance:
    """A token bucket: so many a second, twice as many at once."""

    per_second: float
    _left: float = 0.0
    _at: float = 0.0

    def take(self, now: float) -> bool:
        """Whether there is one left."""
        self._left = min(2.0 * self.per_second, self._left + (now - self._at) * self.per_second)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


@dataclass(slots=True)
class Slow:
    """A request is slow that took several times as long as those of its model and path do on the average."""

    times: float = 5.0
    least_s: float = 0.005  # more than the average, in any case
    _means: dict[tuple[str, Path], float] = field(default_factory=dict)

    def is_slow(self, trace: RequestTrace) -> bool:
        """Whether it was, and learn from it."""
        if trace.outcome is None:
            return False
        key = (trace.model, trace.outcome.path)
        mean = self._means.get(key)
        if mean is None:
            self._means[key] = trace.seconds
            return False
        self._means[key] = mean + 0.05 * (min(trace.seconds, self.times * mean) - mean)
        return trace.seconds > max(self.times * mean, mean + self.least_s)


def ran(requests: Sequence[RequestTrace], began: float, ended: float, outcome: Outcome, predicted_s: float | None) -> None:
    """Note a batch with the requests that have a trace."""
    batch = BatchTrace(_context(random.getrandbits(128) or 1, sampled=True), began, ended, outcome, predicted_s, requests)
    for request in requests:
        request.batches.append(batch)


def _context(trace_id: int, *, sampled: bool, state: TraceState | None = None) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    return SpanContext(trace_id, random.getrandbits(64) or 1, is_remote=False, trace_flags=flags, trace_state=state)
