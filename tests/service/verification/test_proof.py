"""Wrong graphs, injected where a backend's recording would be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from cachepolicy.buckets import Bucket
from cachepolicy.cache import GraphEntry
from cachepolicy.keys import GraphKey
from cachepolicy.reasons import RefusalReason
from service.backends.base import Batch, CaptureTimings, Outputs, Padding, Part, Recording
from service.errors import CaptureRefused
from service.models.loaded import LoadedModel
from service.models.spec import AxisSpec, InputSpec, OutputSpec
from service.recorder import Verdict
from service.tensors import Datatype, HostTensor
from service.verification import Audit, Mismatch
from tests.service.verification.benches import Bench, host

X = InputSpec("x", Datatype.FP32, ("batch", 4))
Y = OutputSpec("y", Datatype.FP32, ("batch", 4))
AXES = (AxisSpec("batch", 8, (4, 8)),)
BUCKET = Bucket.of(batch=8)

Spoil = Callable[[Batch, Outputs], Outputs]


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x)
        return y


@dataclass
class Spoiled:
    """A recording whose replies are changed on the way."""

    real: Recording
    spoil: Spoil
    arena: str = ""
    arena_bytes: int = 0
    driver_bytes: int = 0
    bytes: int = 0
    nodes: int = 1
    bucket: Bucket = BUCKET
    timings: CaptureTimings = field(default_factory=CaptureTimings)

    def replay(self, batch: Batch, padding: Padding = Padding.VALUE) -> list[Outputs]:
        return [self.spoil(batch, outputs) for outputs in self.real.replay(batch, padding)]

    def addresses_unchanged(self) -> bool:
        return self.real.addresses_unchanged()

    def close(self) -> None:
        self.real.close()


def changed(outputs: Outputs, by: Callable[[Tensor], Tensor]) -> Outputs:
    tensor = outputs["y"]
    return {"y": host(by(torch.frombuffer(bytearray(tensor.data), dtype=torch.float32).view(tensor.shape)))}


class FirstAnswerForever:
    """What a graph gives whose inputs are never copied."""

    def __init__(self) -> None:
        self.first: Outputs | None = None

    def __call__(self, batch: Batch, outputs: Outputs) -> Outputs:
        self.first = self.first or outputs
        return self.first


class OneBuffer:
    """Replies that share the memory of the graph's output."""

    def __init__(self) -> None:
        self.memory = bytearray(8 * 4 * 4)

    def __call__(self, batch: Batch, outputs: Outputs) -> Outputs:
        data = bytes(outputs["y"].data)
        self.memory[: len(data)] = data
        return {"y": HostTensor(Datatype.FP32, outputs["y"].shape, memoryview(self.memory)[: len(data)])}


def prove(bench: Bench, spoil: Spoil) -> Verdict:
    model = bench.of_module(Step, inputs=(X,), outputs=(Y,), axes=AXES)

    def work() -> Verdict:
        recording = Spoiled(bench.backend.record(model, (), BUCKET), spoil)
        return bench.proof.verify(model, (), recording, bench.lane)

    return bench.in_capturer(work)


@pytest.mark.parametrize(
    "spoil",
    [
        FirstAnswerForever(),
        OneBuffer(),
        lambda _, outputs: changed(outputs, lambda y: y * 1.0001),
        lambda _, outputs: changed(outputs, lambda y: torch.where(y.abs() > 50, y + 1, y)),
        lambda _, outputs: changed(outputs, lambda y: torch.nan_to_num(y, nan=0.0)),
        lambda _, outputs: changed(outputs, lambda y: y.flip(0)),
    ],
    ids=["first answer forever", "one buffer", "a little off", "large values", "no NaN", "rows swapped"],
)
def test_a_wrong_graph_does_not_serve(bench: Bench, spoil: Spoil) -> None:
    """Refused as a mismatch at its own size."""
    with pytest.raises(CaptureRefused) as refused:
        prove(bench, spoil)
    assert refused.value.reason is RefusalReason.MISMATCH


@pytest.mark.parametrize("rows", range(1, 8))
def test_a_graph_that_is_wrong_at_one_size_is_never_padded(bench: Bench, rows: int) -> None:
    """Every size below a small bucket is tried."""

    def spoil(batch: Batch, outputs: Outputs) -> Outputs:
        return changed(outputs, lambda y: y + 1) if batch.shape["batch"] == rows else outputs

    assert prove(bench, spoil) == Verdict(exact_only=True)


def test_a_reply_of_another_shape_is_named(bench: Bench) -> None:
    """Rows that are cut where they are not."""
    with pytest.raises(CaptureRefused) as refused:
        prove(bench, lambda _, outputs: changed(outputs, lambda y: y[:1]))
    assert refused.value.reason is RefusalReason.OUTPUT_SHAPE


def served(bench: Bench, model: LoadedModel, replies: int, spoiled_from: int, every: int) -> tuple[Audit, list[Mismatch]]:
    recording, _ = bench.admit(model, BUCKET)
    found: list[Mismatch] = []
    audit = Audit(bench.backend, bench.lane, bench.proof.standard, found.append, every=every)
    entry = GraphEntry(GraphKey(model.signature("e", ()), BUCKET), recording, bytes=0)
    for number in range(replies):
        part = Part({"x": host(torch.randn(3, 4, generator=torch.Generator().manual_seed(number)))}, {"batch": 3})

        def work(part: Part = part, number: int = number) -> None:
            outputs = recording.replay(Batch([part], part.shape))
            if number >= spoiled_from:
                outputs = [changed(outputs[0], lambda y: y + 0.01)]
            entry.hits += 1
            audit.offer(entry, model, (), [part], outputs)

        bench.lane.submit(work).result()
        while audit.step():
            pass
        if found:
            break
    return audit, found


def test_the_audit_catches_a_graph_that_goes_wrong_within_its_interval(bench: Bench) -> None:
    """An injected fault is found within as many replays as lie between two audited ones."""
    model = bench.of_module(Step, inputs=(X,), outputs=(Y,), axes=AXES)
    audit, found = served(bench, model, replies=40, spoiled_from=13, every=10)
    assert len(found) == 1
    assert found[0].model is model
    assert audit.audited == 3


def test_the_audit_passes_what_is_right(bench: Bench) -> None:
    """One in n is looked at, and no alarm is raised."""
    model = bench.of_module(Step, inputs=(X,), outputs=(Y,), axes=AXES)
    audit, found = served(bench, model, replies=30, spoiled_from=1000, every=10)
    assert not found
    assert audit.audited == 3


def test_the_audit_holds_no_more_than_it_may(bench: Bench) -> None:
    """What there is no room for is counted, not kept."""
    model = bench.of_module(Step, inputs=(X,), outputs=(Y,), axes=AXES)
    audit = Audit(bench.backend, bench.lane, bench.proof.standard, lambda _: None, every=1, max_bytes=200)
    entry = GraphEntry(GraphKey(model.signature("e", ()), BUCKET), None, bytes=0)
    part = Part({"x": host(torch.zeros(3, 4))}, {"batch": 3})
    for _ in range(5):
        audit.offer(entry, model, (), [part], [{"y": host(torch.zeros(3, 4))}])
    assert (audit.waiting, audit.left_out) == (2, 3)
