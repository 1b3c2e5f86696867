"""The flow, top to bottom.

infer      check → admission → parts → batcher → reply
run batch  route → Replay ⇒ replay; graph lost ⇒ drop it, run eagerly, reason replay_failed
                 → Eager(reason) ⇒ run eagerly, only what is equal in its other axes together
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic, time
from typing import TYPE_CHECKING

from cachepolicy.cache import GraphCache, GraphEntry
from cachepolicy.costs import CostTable
from cachepolicy.reasons import FallbackReason
from service.backends.base import Backend, Batch, Outputs, Part
from service.batcher import Batcher, PartResult, Ticket
from service.capturer import Capturer
from service.errors import BadInput, DeadlinePassed, DeviceLost, GraphcacheError, ModelRaised, Overloaded, Unavailable
from service.lane import Lane
from service.messages import InferReply, InferRequest, ModelStats, ModelStatus, Outcome, Path
from service.models.spec import ModelSpec, Variant
from service.parts import join, split
from service.recorder import Graph
from service.registry import Registry, ServedModel
from service.routing import Eager, Replay, Router
from service.telemetry import spans
from service.telemetry.metrics import UNKNOWN_MODEL, Metrics

if TYPE_CHECKING:  # these load torch, which the worker itself has no use for
    from service.verification import Accepted, Audit

log = logging.getLogger(__name__)

AUDIT_PAUSE_S = 0.05


class Worker:
    """Answers requests. Lives on one event loop; device work happens on the lane."""

    def __init__(
        self,
        name: str,
        backend: Backend,
        lane: Lane,
        registry: Registry,
        cache: GraphCache,
        capturer: Capturer,
        costs: CostTable,
        metrics: Metrics,
        accepted: Accepted,
        audit: Audit,
        *,
        max_waiting: int,
        max_waiting_bytes: int,
        default_deadline_s: float | None,
    ) -> None:
        self.name = name
        self.metrics = metrics
        self.registry = registry
        self._backend = backend
        self._lane = lane
        self._cache = cache
        self._capturer = capturer
        self._costs = costs
        self._accepted = accepted
        self._audit = audit
        self._router = Router(cache, capturer)
        self._batcher = Batcher(self._run_batch)
        self._max_waiting = max_waiting
        self._max_waiting_bytes = max_waiting_bytes
        self._default_deadline_s = default_deadline_s
        self._waiting = 0
        self._waiting_bytes = 0
        self._prewarmed = False
        self._draining = False
        self._lost: DeviceLost | None = None
        self.on_device_lost: Callable[[DeviceLost], None] = lambda _: None

    # -- state

    @property
    def ready(self) -> bool:
        """At least one model is up, the prewarm bound has passed, and nothing forbids serving."""
        return self._prewarmed and not self._draining and self._lost is None and bool(self.registry.all())

    @property
    def waiting(self) -> int:
        """Requests that were accepted and not yet answered."""
        return self._waiting

    @property
    def running(self) -> int:
        """Batches on the lane now."""
        return self._batcher.running

    @property
    def router(self) -> Router:
        """The decider, for explanations."""
        return self._router

    def prewarmed(self) -> None:
        """The prewarm plan is done, or its time is up."""
        self._prewarmed = True

    def lose_device(self, lost: DeviceLost) -> None:
        """Latch a sticky device error: no answer comes out of this process any more."""
        if self._lost is None:
            self._lost = lost
            log.critical("device lost: %s", lost)
            self.on_device_lost(lost)

    async def drain(self) -> None:
        """Take no more requests; returns when those in flight are answered."""
        self._draining = True
        await self._batcher.idle()

    async def audit_when_idle(self) -> None:
        """Run kept replays again eagerly while no request waits; ends by being cancelled."""
        while True:
            await asyncio.sleep(AUDIT_PAUSE_S)
            while self._audit.waiting and not self._waiting and self._lost is None:
                await asyncio.to_thread(self._audit.step)

    def models(self) -> list[ModelStatus]:
        """Every known model and version."""
        return self.registry.statuses()

    def spec(self, model: str, version: str = "") -> ModelSpec:
        """The spec of a model that is up. Raises UnknownModel, Unavailable."""
        return self.registry.get(model, version).spec

    def statistics(self, model: str = "", version: str = "") -> list[ModelStats]:
        """Counters of one model, of all its versions, or of all models."""
        if model:
            self.registry.get(model, version)
        return [
            served.counters.snapshot(served.spec.name, served.spec.version)
            for served in self.registry.all()
            if model in ("", served.spec.name) and version in ("", served.spec.version)
        ]

    # -- one request

    async def infer(self, request: InferRequest) -> InferReply:
        """Answer a request. Raises what `service.errors` names; a cancelled call never runs if it has not started."""
        started = monotonic()
        label = UNKNOWN_MODEL
        try:
            if self._lost is not None:
                raise self._lost
            if self._draining:
                raise Unavailable("the worker is draining")
            served = self.registry.get(request.model, request.version)
            label = served.spec.name
            reply = await self._infer(served, request, started)
        except asyncio.CancelledError:
            self.metrics.failed(label, "cancelled")
            raise
        except GraphcacheError as error:
            self.metrics.failed(label, _outcome_label(error))
            if label != UNKNOWN_MODEL:
                served.counters.failure(monotonic() - started)
            raise
        outcome = reply.outcome
        served.counters.success(_rows(served, request), monotonic() - started, outcome.queue_s, outcome.execute_s)
        self.metrics.served(label, outcome)
        spans.record_execution(label, outcome)
        return reply

    async def _infer(self, served: ServedModel, request: InferRequest, started: float) -> InferReply:
        spec = served.spec
        variant = spec.variant_of(request.parameters)
        shape = spec.check(request.inputs)
        _check_outputs(spec, request)
        deadline = request.deadline
        if deadline is None and self._default_deadline_s is not None:
            deadline = started + self._default_deadline_s
        if deadline is not None and deadline <= started:
            raise DeadlinePassed("the deadline had passed on arrival")
        whole = Part(request.inputs, shape)
        parts = [whole]
        if served.splits and shape[spec.batch_axis] > served.max_rows:
            parts = split(spec, whole, served.max_rows)
        nbytes = request.nbytes
        self._admit(nbytes)
        if served.wants_samples:
            self._accepted.remember(spec.name, request.inputs)
        tickets: list[Ticket] = []
        try:
            tickets.extend(self._enqueue(served, variant, part, deadline) for part in parts)
            async with asyncio.timeout_at(None if deadline is None else _loop_time(deadline)):
                if len(tickets) == 1:
                    result = await tickets[0].future
                else:
                    result = join(spec, await asyncio.gather(*(ticket.future for ticket in tickets)))
        except TimeoutError:
            raise DeadlinePassed("the deadline passed before the answer was there") from None
        finally:
            self._waiting -= 1
            self._waiting_bytes -= nbytes
            for ticket in tickets:
                ticket.future.cancel()  # a failed or late part takes its siblings along; answered ones don't mind
        outputs = result.outputs
        if request.outputs:
            outputs = {name: outputs[name] for name in request.outputs}
        return InferReply(spec.name, spec.version, outputs, result.outcome)

    def _admit(self, nbytes: int) -> None:
        if self._waiting >= self._max_waiting:
            self.metrics.rejected("waiting")
            raise Overloaded(f"{self._waiting} requests are waiting, the limit is {self._max_waiting}")
        if self._waiting_bytes + nbytes > self._max_waiting_bytes:
            self.metrics.rejected("waiting_bytes")
            raise Overloaded(f"waiting requests hold {self._waiting_bytes} bytes, the limit is {self._max_waiting_bytes}")
        self._waiting += 1
        self._waiting_bytes += nbytes

    def _enqueue(self, served: ServedModel, variant: Variant, part: Part, deadline: float | None) -> Ticket:
        rows = part.shape.get(served.spec.batch_axis, 1)
        other_axes = served.other_axes(part.shape)
        ticket = Ticket(
            served=served,
            variant=variant,
            part=part,
            rows=rows,
            deadline=math.inf if deadline is None else deadline,
            future=asyncio.get_running_loop().create_future(),
            slots=_slots(served.spec, part),
            alone=not served.merges or other_axes is None or rows >= served.max_rows,
        )
        self._batcher.submit(ticket, other_axes)
        return ticket

    # -- one batch

    async def _run_batch(self, served: ServedModel, variant: Variant, tickets: Sequence[Ticket]) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[PartResult | Exception]] = loop.create_future()

        def work() -> None:
            try:
                results = self._execute(served, variant, tickets)
            except Exception as error:  # noqa: BLE001 - every ticket gets it
                results = [error] * len(tickets)
            loop.call_soon_threadsafe(done.set_result, results)

        self._lane.post(work)
        for ticket, result in zip(tickets, await done, strict=True):
            if ticket.future.done():
                continue
            if isinstance(result, PartResult):
                ticket.future.set_result(result)
            else:
                if isinstance(result, DeviceLost):
                    self.lose_device(result)
                ticket.future.set_exception(result)

    def _execute(self, served: ServedModel, variant: Variant, tickets: Sequence[Ticket]) -> list[PartResult | Exception]:
        """Runs in the lane's thread."""
        if self._lost is not None:
            raise self._lost
        started = monotonic()
        parts = [ticket.part for ticket in tickets]
        batch = Batch.of(parts, served.spec.batch_axis)
        route = self._router.route(served, variant, batch.shape)
        match route:
            case Replay(entry):
                outputs = self._replay(served, variant, entry, batch)
                if isinstance(outputs, Eager):
                    route, answers = outputs, self._eager(served, variant, parts)
                    if not any(isinstance(answer, Exception) for answer in answers):
                        self._capturer.discard(entry)  # eager had no trouble with the same values: the graph is at fault
                else:
                    answers = list(outputs)
            case Eager():
                answers = self._eager(served, variant, parts)
        seconds = monotonic() - started
        rows = batch.shape.get(served.spec.batch_axis, 1)
        outcome = self._outcome(served, variant, route, batch, rows, seconds)
        served.counters.batch(rows, seconds)
        return [
            answer if isinstance(answer, Exception) else PartResult(answer, replace(outcome, queue_s=started - ticket.enqueued))
            for ticket, answer in zip(tickets, answers, strict=True)
        ]

    def _replay(self, served: ServedModel, variant: Variant, entry: GraphEntry, batch: Batch) -> list[Outputs] | Eager:
        graph = entry.payload
        assert isinstance(graph, Graph)
        key = entry.key
        started = monotonic()
        try:
            outputs = graph.recording.replay(batch, graph.padding)
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, eager has the last word
            log.warning("replay of %s failed: %s: %s", key, type(error).__name__, error)
            return Eager(FallbackReason.REPLAY_FAILED, f"{type(error).__name__}: {error}", key.bucket)
        finally:
            self._cache.release(entry)
        now = monotonic()
        self._capturer.observe_replay(key, now - started)
        eager_s = self._costs.eager(key.signature, served.ladder.fit(batch.shape) or key.bucket)
        saved_s = 0.0 if eager_s is None else eager_s - (now - started)
        self._cache.record_hit(entry, now, saved_s)
        self.metrics.replayed(served.spec.name, str(key.bucket), saved_s)
        self._audit.offer(entry, served.loaded, variant, batch.parts, outputs)
        return outputs

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
            for index, answer in zip(indices, found, strict=True):
                answers[index] = answer
        return answers

    def _one_eager(self, served: ServedModel, variant: Variant, part: Part) -> Outputs | Exception:
        try:
            return self._run_eager(served, variant, [part])[0]
        except ModelRaised as error:
            return error

    def _run_eager(self, served: ServedModel, variant: Variant, parts: Sequence[Part]) -> list[Outputs]:
        batch = Batch.of(parts, served.spec.batch_axis)
        started = monotonic()
        outputs = self._backend.run_eager(served.loaded, variant, batch)
        fit = served.ladder.fit(batch.shape)
        if fit is not None:
            self._capturer.observe_eager(served.key(variant, fit), monotonic() - started)
        return outputs

    def _outcome(self, served: ServedModel, variant: Variant, route: Replay | Eager, batch: Batch, rows: int, seconds: float) -> Outcome:
        mode = served.mode(variant, time())
        if isinstance(route, Eager):
            return Outcome(
                Path.EAGER, route.reason, route.detail, route.bucket, batch_rows=rows, execute_s=seconds, variant=variant, mode=mode
            )
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


def _slots(spec: ModelSpec, part: Part) -> frozenset[tuple[str, int]]:
    names = {state.index_input for state in spec.state}
    return frozenset((name, int(slot)) for name in names for slot in part.inputs[name].array().reshape(-1).tolist())


def _check_outputs(spec: ModelSpec, request: InferRequest) -> None:
    if request.outputs:
        known = {output.name for output in spec.outputs}
        for name in request.outputs:
            if name not in known:
                raise BadInput("", f"output {name!r}: unknown; {spec.name} gives {', '.join(sorted(known))}")


def _rows(served: ServedModel, request: InferRequest) -> int:
    spec = served.spec
    for declared in spec.requested_inputs:
        if spec.batch_axis in declared.shape:
            return request.inputs[declared.name].shape[declared.shape.index(spec.batch_axis)]
    return 1


def _outcome_label(error: GraphcacheError) -> str:
    match error:
        case Overloaded():
            return "rejected"
        case DeadlinePassed():
            return "expired"
        case _:
            return "error"


def _loop_time(deadline: float) -> float:
    """Asyncio's clock may differ from time.monotonic (uvloop's has a coarser resolution)."""
    return asyncio.get_running_loop().time() + deadline - monotonic()
