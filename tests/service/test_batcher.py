"""The batcher alone: what runs together, in which order, and what never runs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from time import monotonic

import pytest
import torch
from torch import nn

from cachepolicy.buckets import Bucket
from service.backends.base import Part
from service.batcher import Batcher, PartResult, Ticket
from service.choices import Rows
from service.config import ModelConfig
from service.errors import DeadlinePassed
from service.messages import Outcome, Path
from service.models.loaded import LoadedModel
from service.models.spec import AxisSpec, InputSpec, ModelSpec, OutputSpec, Variant
from service.registry import ServedModel, Surroundings
from service.tensors import Datatype, HostTensor


def model(name: str = "m", max_wait_s: float = 0.0) -> ServedModel:
    spec = ModelSpec(
        name,
        "1",
        (InputSpec("x", Datatype.FP32, ("batch",)),),
        (OutputSpec("y", Datatype.FP32, ("batch",)),),
        (AxisSpec("batch", 8, (8,)),),
        rows=Rows.INDEPENDENT,
        max_wait_s=max_wait_s,
    )
    loaded = LoadedModel(spec, nn.Identity(), torch.device("cpu"), "program", f"{name}:1@1")
    return ServedModel(ModelConfig(name=name, factory="a:b"), loaded, Surroundings("env"), 1)


class Device:
    """Runs batches when told to, and keeps what ran."""

    def __init__(self) -> None:
        self.ran: list[list[Ticket]] = []
        self.go = asyncio.Event()
        self.go.set()

    async def run(self, _served: ServedModel, _variant: Variant, tickets: Sequence[Ticket]) -> None:
        """What the batcher calls."""
        self.ran.append(list(tickets))
        await self.go.wait()
        for ticket in tickets:
            if not ticket.future.done():
                ticket.future.set_result(PartResult({}, Outcome(Path.EAGER)))


def ticket(served: ServedModel, rows: int = 1, *, deadline: float = math.inf, slots: Sequence[int] = (), alone: bool = False) -> Ticket:
    part = Part({"x": HostTensor(Datatype.FP32, (rows,), bytes(4 * rows))}, {"batch": rows})
    future = asyncio.get_running_loop().create_future()
    return Ticket(served, (), part, rows, deadline, future, frozenset(("slots", slot) for slot in slots), alone)


@pytest.fixture
async def device() -> Device:
    return Device()


async def test_what_arrives_while_a_batch_runs_forms_the_next_one(device: Device) -> None:
    """Five tickets behind a running one go together, up to the axis' maximum."""
    batcher, m = Batcher(device.run), model()
    device.go.clear()
    tickets = [ticket(m, rows) for rows in (1, 3, 3, 3, 1)]
    for one in tickets:
        batcher.submit(one, None)
    await asyncio.sleep(0)
    device.go.set()
    await asyncio.gather(*(one.future for one in tickets))
    assert [[t.rows for t in batch] for batch in device.ran] == [[1], [3, 3, 1], [3]]


async def test_models_variants_and_buckets_never_mix(device: Device) -> None:
    """Tickets of two models and two buckets end in four batches."""
    batcher, one, two = Batcher(device.run), model("one"), model("two")
    tickets = []
    for served in (one, two):
        for bucket in (Bucket.of(seq=32), Bucket.of(seq=64)):
            for _ in range(2):
                tickets.append(ticket(served))
                batcher.submit(tickets[-1], bucket)
    await asyncio.gather(*(t.future for t in tickets))
    assert len(device.ran) >= 4
    assert all(len({id(t.served) for t in batch}) == 1 for batch in device.ran)


async def test_a_ticket_that_must_run_alone_does(device: Device) -> None:
    """Rows that may not merge don't."""
    batcher, m = Batcher(device.run), model()
    tickets = [ticket(m, alone=True) for _ in range(4)]
    for one in tickets:
        batcher.submit(one, None)
    await asyncio.gather(*(one.future for one in tickets))
    assert [len(batch) for batch in device.ran] == [1, 1, 1, 1]


async def test_the_most_urgent_group_goes_first(device: Device) -> None:
    """While the device is busy two models wait; the one with the earlier deadline is next."""
    batcher, first, late, soon = Batcher(device.run), model("first"), model("late"), model("soon")
    device.go.clear()
    tickets = [ticket(first), ticket(late, deadline=monotonic() + 100), ticket(soon, deadline=monotonic() + 50)]
    for one in tickets:
        batcher.submit(one, None)
    await asyncio.sleep(0)
    device.go.set()
    await asyncio.gather(*(one.future for one in tickets))
    assert [batch[0].served.spec.name for batch in device.ran] == ["first", "soon", "late"]


async def test_expired_and_abandoned_tickets_never_run(device: Device) -> None:
    """Behind a running batch one ticket expires and one is cancelled; only the third runs."""
    batcher, m = Batcher(device.run), model()
    device.go.clear()
    running, expired, cancelled, good = ticket(m), ticket(m, deadline=monotonic() + 0.01), ticket(m), ticket(m)
    for one in (running, expired, cancelled, good):
        batcher.submit(one, None)
    cancelled.future.cancel()
    await asyncio.sleep(0.03)
    device.go.set()
    await good.future
    with pytest.raises(DeadlinePassed):
        await expired.future
    assert [len(batch) for batch in device.ran] == [1, 1]
    assert device.ran[1] == [good]


async def test_tickets_of_one_slot_keep_their_order(device: Device) -> None:
    """No batch names a slot twice, and nobody overtakes on a slot."""
    batcher, m = Batcher(device.run), model()
    device.go.clear()
    tickets = [ticket(m), ticket(m, slots=[1]), ticket(m, 2, slots=[1, 2]), ticket(m, slots=[2]), ticket(m, slots=[3])]
    for one in tickets:
        batcher.submit(one, None)
    await asyncio.sleep(0)
    device.go.set()
    await asyncio.gather(*(one.future for one in tickets))
    _, a, b, c, d = tickets
    assert device.ran[1:] == [[a, d], [b], [c]]


async def test_a_lone_client_is_never_held_back(device: Device) -> None:
    """In a closed loop of one client every batch starts at once, whatever max_wait says."""
    batcher, m = Batcher(device.run), model(max_wait_s=3600.0)
    for _ in range(5):
        one = ticket(m)
        batcher.submit(one, None)
        await one.future
    assert [len(batch) for batch in device.ran] == [1] * 5


async def test_company_is_waited_for_where_it_came_before(device: Device) -> None:
    """After a batch of three, a first ticket waits for two more."""
    batcher, m = Batcher(device.run), model(max_wait_s=3600.0)
    device.go.clear()
    tickets = [ticket(m) for _ in range(4)]
    for one in tickets:
        batcher.submit(one, None)
    await asyncio.sleep(0)
    device.go.set()
    await asyncio.gather(*(one.future for one in tickets))
    again = [ticket(m) for _ in range(3)]
    for one in again:
        batcher.submit(one, None)
        await asyncio.sleep(0.01)
    await asyncio.gather(*(one.future for one in again))
    assert [len(batch) for batch in device.ran] == [1, 3, 3]


async def test_idle_waits_for_all_work(device: Device) -> None:
    """`idle` returns when nothing waits and nothing runs."""
    batcher, m = Batcher(device.run), model()
    one = ticket(m)
    batcher.submit(one, None)
    await batcher.idle()
    assert one.future.done()
