"""Every request ends here, once: counted, weighed by the alarm, and kept for whoever asks later."""

from __future__ import annotations

import math
from time import monotonic, time
from typing import TYPE_CHECKING

from cachepolicy.buckets import Bucket
from cachepolicy.reasons import hint_for
from service.choices import Keep
from service.messages import InferReply, InferRequest, Path
from service.snapshot import Decision
from service.telemetry import tracing
from service.telemetry.journal import ID, Journal
from service.telemetry.metrics import Metrics, size_class

if TYPE_CHECKING:
    from service.registry import ServedModel
    from service.telemetry.alarm import GraphsOff
    from service.telemetry.tracing import RequestTrace

_DETAIL = 500  # characters of an error that are kept


class Endings:
    """Books requests. Called on the event loop."""

    def __init__(self, metrics: Metrics, alarm: GraphsOff, journal: Journal) -> None:
        self.metrics = metrics
        self._alarm = alarm
        self._journal = journal

    def answered(self, served: ServedModel, request: InferRequest, reply: InferReply, started: float) -> None:
        """An answer was given; `started` is when the request arrived, in monotonic seconds."""
        outcome, now = reply.outcome, monotonic()
        size = size_class(math.prod(reply.shape.values()), math.prod(axis.max for axis in served.spec.axes))
        trace = tracing.current()
        trace_id = _kept(trace, Keep.FALLBACK if outcome.path is Path.EAGER else Keep.SLOW)
        if trace is not None:
            trace.model, trace.request_id, trace.result, trace.outcome = reply.model, request.request_id, str(outcome.path), outcome
            trace.nearest = None if outcome.path is Path.REPLAY else outcome.bucket or _largest(served)
        self.metrics.served(reply.model, outcome, size, now - started, trace_id)
        self._alarm.count(reply.model, outcome.reason, outcome.detail, now)
        decision = Decision(
            time(),
            reply.model,
            reply.version,
            request.request_id[:ID],
            trace_id,
            reply.shape,
            str(outcome.path),
            outcome.reason,
            bucket=outcome.bucket,
            variant=outcome.variant,
            padding_ratio=outcome.padding_ratio,
            batch_rows=outcome.batch_rows,
            parts=outcome.parts,
            queue_s=outcome.queue_s,
            execute_s=outcome.execute_s,
            total_s=now - started,
        )
        if outcome.reason is not None:
            decision.detail, decision.hint = outcome.detail[:_DETAIL], hint_for(outcome.reason, outcome.detail)
        self._journal.decided(decision)

    def forget(self, model: str) -> None:
        """No version of the model is up any more."""
        self.metrics.forget(model)
        self._alarm.forget(model)

    def failed(self, label: str, request: InferRequest, outcome: str, detail: str, started: float) -> None:
        """No answer was given. `label` is the model's name where one is known; `outcome`: rejected, expired, cancelled or error."""
        self.metrics.failed(label, outcome)
        trace = tracing.current()
        if trace is not None:
            trace.model, trace.request_id, trace.result = label, request.request_id, outcome
        self._journal.decided(
            Decision(
                time(),
                request.model[:_DETAIL],
                request.version[:_DETAIL],
                request.request_id[:ID],
                _kept(trace, Keep.ERROR),
                {},
                outcome,
                detail=detail[:_DETAIL],
                total_s=monotonic() - started,
            )
        )


def _largest(served: ServedModel) -> Bucket:
    return Bucket(tuple((name, sizes[-1]) for name, sizes in served.ladder.axes))


def _kept(trace: RequestTrace | None, kind: Keep) -> str:
    """The trace that tells of the request in hand, or "" where none is kept. Whether it is slow is not known yet."""
    if trace is None or not (trace.sampled if kind is Keep.SLOW else trace.kept_for(kind)):
        return ""
    return trace.trace_id
