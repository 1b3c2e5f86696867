"""Groups waiting requests into batches: by model, variant and bucket of the other axes; earliest deadline first.

Lives on the event loop alone. One batch is on the lane at a time; what arrives meanwhile forms the next one. A batch waits for
company (at most the model's `max_wait`) only while company is likely: until as many requests wait as the last batch answered.
A lone client in a closed loop is therefore never held back.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from cachepolicy.buckets import Bucket
from service.backends.base import Part
from service.errors import DeadlinePassed
from service.messages import Outcome
from service.models.spec import Variant
from service.registry import ServedModel
from service.telemetry.tracing import RequestTrace
from service.tensors import HostTensor


@dataclass(slots=True, eq=False)
class PartResult:
    """Outputs of one part and how they came to be."""

    outputs: dict[str, HostTensor]
    outcome: Outcome


@dataclass(slots=True, eq=False)
class Ticket:
    """A part waiting for its turn. `slots` are the state slots it names; no batch names one twice."""

    served: ServedModel
    variant: Variant
    part: Part
    rows: int
    deadline: float  # monotonic seconds; infinity where there is none
    future: asyncio.Future[PartResult]
    slots: frozenset[Hashable] = frozenset()
    alone: bool = False
    trace: RequestTrace | None = None
    enqueued: float = field(default_factory=monotonic)

    @property
    def abandoned(self) -> bool:
        """Nobody waits for it any more."""
        return self.future.done()


@dataclass(slots=True, eq=False)
class _Group:
    waiting: deque[Ticket] = field(default_factory=deque)
    last_count: int = 1  # requests in the last batch
    last_done: float = -math.inf


RunBatch = Callable[[ServedModel, Variant, Sequence[Ticket]], Awaitable[None]]


class Batcher:
    """Forms batches and hands them to `run`, one at a time."""

    def __init__(self, run: RunBatch) -> None:
        self._run = run
        self._groups: dict[Hashable, _Group] = {}
        self._running: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """Batches on the lane now."""
        return int(self._running is not None)

    def queued(self) -> list[list[Ticket]]:
        """Waiting tickets by group. May be called from any thread."""
        return [list(group.waiting) for group in list(self._groups.values())]

    def submit(self, ticket: Ticket, other_axes: Bucket | None) -> None:
        """Queue a ticket. `other_axes` is the bucket of all axes but the batch's; None where no bucket covers it."""
        key = (id(ticket.served), ticket.variant, other_axes)  # an empty group keeps no unloaded model's weights
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
        group.waiting.append(ticket)
        self._idle.clear()
        self._pump()

    async def idle(self) -> None:
        """Wait until nothing waits and nothing runs."""
        await self._idle.wait()

    def _pump(self) -> None:
        if self._running is not None:
            return
        now = monotonic()
        best: _Group | None = None
        best_at = wake_at = math.inf
        for key, group in list(self._groups.items()):
            self._discard(group, now)
            if not group.waiting:
                if now - group.last_done > 1.0:
                    del self._groups[key]
                continue
            head = group.waiting[0]
            ready_at = self._ready_at(group, head)
            if ready_at > now:
                wake_at = min(wake_at, ready_at)
                continue
            urgency = min(head.deadline, head.enqueued + 1e6)  # deadlines first, then arrival
            if best is None or urgency < best_at:
                best, best_at = group, urgency
        if best is not None:
            self._start(best)
        elif wake_at < math.inf:
            self._wake(wake_at - now)
        else:
            self._idle.set()

    def _ready_at(self, group: _Group, head: Ticket) -> float:
        """When the group's next batch should start."""
        wait = head.served.spec.max_wait_s
        company = not head.alone and len(group.waiting) < group.last_count and head.enqueued - group.last_done < wait
        if not company or sum(ticket.rows for ticket in group.waiting) >= head.served.max_rows:
            return head.enqueued
        return head.enqueued + wait

    def _start(self, group: _Group) -> None:
        tickets = self._take(group)
        group.last_count = len(tickets)
        task = asyncio.ensure_future(self._run(tickets[0].served, tickets[0].variant, tickets))
        self._running = task
        task.add_done_callback(lambda _: self._finished(group))

    def _finished(self, group: _Group) -> None:
        group.last_done = monotonic()
        self._running = None
        self._pump()

    def _take(self, group: _Group) -> list[Ticket]:
        """The next batch: in order of arrival, up to the axis' maximum, no slot twice."""
        first = group.waiting.popleft()
        taken, rows, slots = [first], first.rows, set(first.slots)
        if first.alone:
            return taken
        kept: deque[Ticket] = deque()
        limit = first.served.max_rows
        while group.waiting:
            ticket = group.waiting.popleft()
            if ticket.alone or rows + ticket.rows > limit or not slots.isdisjoint(ticket.slots):
                kept.append(ticket)
            else:
                taken.append(ticket)
                rows += ticket.rows
            slots |= ticket.slots  # a later ticket must not overtake a kept one on the same slot
        group.waiting = kept
        return taken

    @staticmethod
    def _discard(group: _Group, now: float) -> None:
        """Drop what nobody waits for and what is too late; neither ever runs."""
        if not any(ticket.abandoned or ticket.deadline <= now for ticket in group.waiting):
            return
        kept: deque[Ticket] = deque()
        for ticket in group.waiting:
            if ticket.abandoned:
                continue
            if ticket.deadline <= now:
                ticket.future.set_exception(DeadlinePassed("the deadline passed while the request was waiting"))
            else:
                kept.append(ticket)
        group.waiting = kept

    def _wake(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay, self._pump)
