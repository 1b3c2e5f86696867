"""One batch on the lane: route it, run it, say how it was served. Everything here runs in the lane's thread.

What is only counted (metrics, costs, the policy's demand, the audit) comes after the answers were handed over: `Execution.settle`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from time import monotonic, time
from typing import TYPE_CHECKING

from cachepolicy.buckets import Bucket
from cachepolicy.cache import GraphCache, GraphEntry
from cachepolicy.costs import CostTable
from cachepolicy.reasons import FallbackReason, RefusalReason
from service.backends.base import Backend, Batch, Outputs, Part
from service.batcher import PartResult, Ticket
from service.capturer import Capturer
from service.errors import DeviceLost, ModelRaised, OutOfDeviceMemory, Unavailable, told
from service.messages import Outcome, Path
from service.models.spec import Variant
from service.recorder import Graph
from service.registry import ServedModel
from service.routing import Eager, Replay, Router
from service.telemetry import tracing
from service.telemetry.metrics import Metrics

if TYPE_CHECKING:  # loads torch, which the flow itself has no use for
    from service.verification import Audit

log = logging.getLogger(__name__)

Answer = PartResult | Exception


@dataclass(frozen=True, slots=True)
class Execution:
    """An answer for each ticket, and what is left to be counted."""

    answers: Sequence[Answer]
    settle: Callable[[], None]


class Executor:
    """Runs batches."""

    def __init__(
        self, backend: Backend, router: Router, cache: GraphCache, capturer: Capturer, costs: CostTable, metrics: Metrics, audit: Audit
    ) -> None:
        self._backend = backend
        self._router = router
        self._cache = cache
        self._capturer = capturer
        self._costs = costs
        self._metrics = metrics
        self._audit = audit

    def execute(self, served: ServedModel, variant: Variant, tickets: Sequence[Ticket]) -> Execution:
        """Serve a batch. Raises DeviceLost; what a part's own model code raises, or a lack of memory, is that part's answer."""
        started = monotonic()
        parts = [ticket.part for ticket in tickets]
        batch = Batch.of(parts, served.spec.batch_axis)
        decided = route = self._router.route(served, variant, batch.shape)
        traces = [ticket.trace for ticket in tickets if ticket.trace is not None]
        predicted_s = self._predicted(served, variant, route, batch) if traces else None
        answers: Sequence[Outputs | Exception] = ()
        if isinstance(route, Replay):
            served_by = self._replay(route.entry, batch)
            if isinstance(served_by, Eager):
                route = served_by
            else:
                answers = served_by
        if isinstance(route, Eager):
            answers = self._eager(served, variant, parts)
        now = monotonic()
        outcome = _outcome(served, variant, route, batch, now - started)
        results: list[Answer] = [
            answer if isinstance(answer, Exception) else PartResult(answer, replace(outcome, queue_s=started - ticket.enqueued))
            for ticket, answer in zip(tickets, answers, strict=True)
        ]

        if traces:
            tracing.ran(traces, started, now, outcome, predicted_s)

        def settle() -> None:
            self._router.count(served, variant, batch.shape, decided)
            served.counters.batch(outcome.batch_rows, now - started)
            if isinstance(decided, Replay):
                if isinstance(route, Replay):
                    self._count_replay(served, variant, decided.entry, batch, answers, outcome)
                elif not any(isinstance(answer, Exception) for answer in answers):
                    self._capturer.discard(decided.entry)  # eager had no trouble with the same values: the graph is at fault
            if isinstance(route, Eager):
                self._count_eager(served, variant, route, batch, outcome.execute_s)

        return Execution(results, settle)

    def _predicted(self, served: ServedModel, variant: Variant, route: Replay | Eager, batch: Batch) -> float | None:
        """Seconds that the run was expected to take."""
        if isinstance(route, Replay):
            return self._costs.replay(route.entry.key.signature, route.entry.key.bucket)
        fit = served.ladder.fit(batch.shape)
        return None if fit is None else self._costs.eager(served.signature(variant), fit)

    def make_room(self) -> Future[int]:
        """Evict every graph that may go, for a step that found no device memory; graphs come back as traffic earns them."""
        return self._capturer.evict([entry.key for entry in self._cache])

    def _replay(self, entry: GraphEntry, batch: Batch) -> Sequence[Outputs] | Eager:
        graph, key = entry.payload, entry.key
        assert isinstance(graph, Graph)
        try:
            return graph.recording.replay(batch, graph.padding)
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, eager has the last word
            log.warning("replay of %s failed: %s", key, told(error))
            return Eager(FallbackReason.REPLAY_FAILED, told(error), key.bucket)
        finally:
            self._cache.release(entry)

    def _count_replay(
        self,
        served: ServedModel,
        variant: Variant,
        entry: GraphEntry,
        batch: Batch,
        answers: Sequence[Outputs | Exception],
        outcome: Outcome,
    ) -> None:
        key, seconds = entry.key, outcome.execute_s
        self._metrics.predicted(Path.REPLAY, self._costs.replay(key.signature, key.bucket), seconds)
        self._capturer.observe_replay(key, seconds)
        eager_s = self._costs.eager(key.signature, served.ladder.fit(batch.shape) or key.bucket)
        saved_s = 0.0 if eager_s is None else eager_s - seconds
        self._cache.record_hit(entry, monotonic(), saved_s)
        self._metrics.replayed(served.spec.name, key.bucket, outcome.padding_ratio, saved_s)
        outputs = [answer for answer in answers if not isinstance(answer, Exception)]
        self._audit.offer(entry, served.loaded, variant, batch.parts, outputs)

    def _count_eager(self, served: ServedModel, variant: Variant, route: Eager, batch: Batch, seconds: float) -> None:
        """What the run is predicted to have cost more than a replay at its bucket; as if there were one of its size where none covers it.

        Predicted on both sides: one slow run is no reason's fault. What is refused as unprofitable loses nothing by definition.
        """
        fit = served.ladder.fit(batch.shape) or Bucket(tuple((name, batch.shape[name]) for name, _ in served.ladder.axes))
        prices = self._costs.prices(served.signature(variant), [fit])
        self._metrics.predicted(Path.EAGER, prices.eager[0], seconds)
        if route.reason is not FallbackReason.REFUSED or not route.detail.startswith(RefusalReason.UNPROFITABLE):
            self._metrics.lost(served.spec.name, route.reason, max(0.0, prices.eager[0] - prices.replay[0]))

    def _eager(self, served: ServedModel, variant: Variant, parts: Sequence[Part]) -> list[Outputs | Exception]:
        """Parts that are equal in their other axes run together; where that fails, each alone, so that only the culprit fails."""
        axis = served.spec.batch_axis
        groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for index, part in enumerate(parts):
            others = tuple((name, size) for name, size in part.shape.items() if name != axis)
            groups.setdefault(others, []).append(index)
        answers: list[Outputs | Exception] = [Unavailable("not run")] * len(parts)
        for indices in groups.values():
            try:
                found: Sequence[Outputs | Exception] = self._run_eager(served, variant, [parts[i] for i in indices])
            except ModelRaised as error:
                found = [error] if len(indices) == 1 else [self._one_eager(served, variant, parts[i]) for i in indices]
            except OutOfDeviceMemory as error:
                found = [error] * len(indices)
            for index, answer in zip(indices, found, strict=True):
                answers[index] = answer
        return answers

    def _one_eager(self, served: ServedModel, variant: Variant, part: Part) -> Outputs | Exception:
        try:
            return self._run_eager(served, variant, [part])[0]
        except (ModelRaised, OutOfDeviceMemory) as error:
            return error

    def _run_eager(self, served: ServedModel, variant: Variant, parts: Sequence[Part]) -> list[Outputs]:
        batch = Batch.of(parts, served.spec.batch_axis)
        started = monotonic()
        outputs = self._backend.run_eager(served.loaded, variant, batch)
        fit = served.ladder.fit(batch.shape)
        if fit is not None:
            self._capturer.observe_eager(served.key(variant, fit), monotonic() - started)
        return outputs


def _outcome(served: ServedModel, variant: Variant, route: Replay | Eager, batch: Batch, seconds: float) -> Outcome:
    rows = batch.shape.get(served.spec.batch_axis, 1)
    mode = served.mode(variant, time())
    if isinstance(route, Eager):
        return Outcome(Path.EAGER, route.reason, route.detail, route.bucket, batch_rows=rows, execute_s=seconds, variant=variant, mode=mode)
    key = route.entry.key
    real = sum(math.prod(part.shape[axis] for axis, _ in key.bucket.sizes) for part in batch.parts)
    return Outcome(
        Path.REPLAY,
        bucket=key.bucket,
        padding_ratio=key.bucket.padding_ratio(real),
        batch_rows=rows,
        execute_s=seconds,
        key=key.fingerprint(),
        variant=variant,
        mode=mode,
    )
