"""The flow, top to bottom.

infer      check → admission → parts → batcher → reply
run batch  (service/execution.py, on the lane)
           route → Replay ⇒ replay; graph lost ⇒ drop it, run eagerly, reason replay_failed
                 → Eager(reason) ⇒ run eagerly, only what is equal in its other axes together
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from service.backends.base import Part
from service.batcher import Batcher, PartResult, Ticket
from service.errors import BadInput, DeadlinePassed, DeviceLost, GraphcacheError, ModelRaised, OutOfDeviceMemory, Overloaded, Unavailable
from service.execution import Answer, Executor
from service.lane import LaneThread
from service.messages import InferReply, InferRequest, ModelStats, ModelStatus
from service.models.spec import ModelSpec, Variant
from service.parts import join, split
from service.registry import Registry, ServedModel
from service.telemetry import tracing
from service.telemetry.endings import Endings
from service.telemetry.metrics import UNKNOWN_MODEL

if TYPE_CHECKING:  # these load torch, which the worker itself has no use for
    from service.verification import Accepted, Audit

log = logging.getLogger(__name__)

AUDIT_PAUSE_S = 0.05
RETRY_AFTER_S = 0.1  # told to clients that find the queue full


class Worker:
    """Answers requests. Lives on one event loop; device work happens on the lane."""

    def __init__(
        self,
        name: str,
        lane: LaneThread,
        registry: Registry,
        executor: Executor,
        endings: Endings,
        accepted: Accepted,
        audit: Audit,
        *,
        max_waiting: int,
        max_waiting_bytes: int,
        default_deadline_s: float | None,
    ) -> None:
        self.name = name
        self.metrics = endings.metrics
        self.registry = registry
        self._lane = lane
        self._executor = executor
        self._endings = endings
        self._accepted = accepted
        self._audit = audit
        self._batcher = Batcher(self._run_batch)
        self._max_waiting = max_waiting
        self._max_waiting_bytes = max_waiting_bytes
        self._default_deadline_s = default_deadline_s
        self._waiting = 0
        self._waiting_bytes = 0
        self._prewarmed = False
        self._draining = False
        self._refusing = asyncio.Event()  # cleared: who is to be refused waits for it
        self._refusing.set()
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
    def saturation(self) -> float:
        """How much of the limits on waiting requests and their bytes is in use, the larger of both: 1 where requests are refused."""
        return max(self._waiting / self._max_waiting, self._waiting_bytes / self._max_waiting_bytes)

    def queued(self) -> list[list[Ticket]]:
        """Tickets that wait for their batch, by group. May be called from any thread."""
        return self._batcher.queued()

    def hurried(self, slack_s: float) -> bool:
        """Whether a waiting request has less time left than this. From any thread."""
        soon = monotonic() + slack_s
        return any(ticket.deadline < soon for group in self.queued() for ticket in group)

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

    def hold(self) -> None:
        """From now on what comes after the drain waits for `release` and is refused then.

        gRPC cancels calls that it has not handed over yet while a port closes. Clients that send one call after the other have theirs
        in here at that moment, and are told UNAVAILABLE.
        """
        self._refusing.clear()

    def release(self) -> None:
        """Refuse what was held."""
        self._refusing.set()

    async def audit_when_idle(self) -> None:
        """Run kept replays again eagerly while no request waits, and one now and then where that never is; ends by being cancelled."""
        while True:
            await asyncio.sleep(AUDIT_PAUSE_S)
            if self._audit.overdue and self._lost is None:
                await asyncio.to_thread(self._audit.step)
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
            if self._lost is not None or self._draining:
                await self._refusing.wait()
                raise self._lost or Unavailable("the worker is draining")
            served = self.registry.get(request.model, request.version)
            label = served.spec.name
            reply = await self._infer(served, request, started)
        except asyncio.CancelledError:
            self._endings.failed(label, request, "cancelled", "", started)
            raise
        except GraphcacheError as error:
            self._endings.failed(label, request, _outcome_label(error), str(error), started)
            if label != UNKNOWN_MODEL:
                served.counters.failure(monotonic() - started)
            raise
        outcome = reply.outcome
        served.counters.success(_rows(served, request), monotonic() - started, outcome.queue_s, outcome.execute_s)
        self._endings.answered(served, request, reply, started)
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
        if served.splits(variant) and shape[spec.batch_axis] > served.max_rows:
            parts = split(spec, whole, served.max_rows)
        nbytes = request.nbytes
        self._admit(nbytes)
        if (trace := tracing.current()) is not None:
            trace.admitted = monotonic()
        if served.wants_samples:
            self._accepted.remember(spec.name, request.inputs)
        tickets: list[Ticket] = []
        try:
            async with asyncio.timeout_at(None if deadline is None else _loop_time(deadline)):
                if len(parts) == 1:
                    tickets.append(self._enqueue(served, variant, whole, deadline))
                    result = await tickets[0].future
                else:
                    async with served.wholeness.kept():
                        tickets.extend(self._enqueue(served, variant, part, deadline) for part in parts)
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
        return InferReply(spec.name, spec.version, outputs, result.outcome, shape)

    def _admit(self, nbytes: int) -> None:
        if self._waiting >= self._max_waiting:
            self.metrics.rejected("waiting")
            raise Overloaded(f"{self._waiting} requests are waiting, the limit is {self._max_waiting}", RETRY_AFTER_S)
        if self._waiting_bytes + nbytes > self._max_waiting_bytes:
            self.metrics.rejected("waiting_bytes")
            problem = f"waiting requests hold {self._waiting_bytes} bytes, the limit is {self._max_waiting_bytes}"
            raise Overloaded(problem, RETRY_AFTER_S)
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
            trace=tracing.current(),
            alone=not served.merges(variant) or other_axes is None or rows >= served.max_rows,
        )
        self._batcher.submit(ticket, other_axes)
        return ticket

    # -- one batch

    async def _run_batch(self, served: ServedModel, variant: Variant, tickets: Sequence[Ticket]) -> None:
        self._answer(tickets, await self._on_lane(served, variant, tickets))
        starved = [ticket for ticket in tickets if not ticket.future.done()]
        if starved:
            log.warning("no device memory for %s: graphs are evicted and the step is tried once more", served.id)
            await asyncio.wait([asyncio.wrap_future(self._executor.make_room())])
            starved = [ticket for ticket in starved if not ticket.future.done()]  # some may have been cancelled meanwhile
        if starved:
            self._answer(starved, await self._on_lane(served, variant, starved), last=True)

    async def _on_lane(self, served: ServedModel, variant: Variant, tickets: Sequence[Ticket]) -> Sequence[Answer]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Sequence[Answer]] = loop.create_future()

        def work() -> None:
            try:
                if self._lost is not None:
                    raise self._lost  # noqa: TRY301 - answered like one that the run itself raises
                execution = self._executor.execute(served, variant, tickets)
            except BaseException as error:  # noqa: BLE001 - every ticket gets it
                answer = error if isinstance(error, Exception) else ModelRaised(error)
                loop.call_soon_threadsafe(done.set_result, [answer] * len(tickets))
            else:
                loop.call_soon_threadsafe(done.set_result, execution.answers)
                execution.settle()

        self._lane.post(work)
        return await done

    def _answer(self, tickets: Sequence[Ticket], answers: Sequence[Answer], *, last: bool = False) -> None:
        """Hand answers over. Who found no memory waits for the last try; not where a failed step may have written to state before."""
        for ticket, answer in zip(tickets, answers, strict=True):
            if ticket.future.done():
                continue
            if isinstance(answer, PartResult):
                ticket.future.set_result(answer)
                continue
            if isinstance(answer, DeviceLost):
                self.lose_device(answer)
            if last or ticket.served.spec.state or not isinstance(answer, OutOfDeviceMemory):
                ticket.future.set_exception(answer)


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
