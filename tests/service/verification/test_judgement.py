"""Declared state, and what a judgement must not take for state."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cachepolicy.buckets import Bucket
from cachepolicy.reasons import RefusalReason
from service.backends.base import Batch, Part
from service.errors import CaptureRefused, NotYetProvable
from service.models.loaded import LoadedModel
from service.models.spec import AxisSpec, InputSpec, OutputSpec, StateSpec
from service.recorder import Verdict
from service.tensors import Datatype
from tests.harness import MODULES
from tests.service.verification.benches import MODELS, Bench, file_module, host, value

X = InputSpec("x", Datatype.FP32, ("batch", 4))
Y = OutputSpec("y", Datatype.FP32, ("batch", 4))
SLOT = InputSpec("slot", Datatype.INT64, ("batch",))
AXES = (AxisSpec("batch", 8, (4, 8)),)


class Counter(nn.Module):
    """Adds up what each slot was given."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(12, 4))

    def forward(self, x: Tensor, slot: Tensor) -> Tensor:
        y = self.total[slot] + x
        self.total.index_put_((slot,), y)
        return y


class WritesBeside(Counter):
    def forward(self, x: Tensor, slot: Tensor) -> Tensor:
        y = super().forward(x, slot)
        self.total[7].add_(1)
        return y


class ReadsBeside(Counter):
    def forward(self, x: Tensor, slot: Tensor) -> Tensor:
        return super().forward(x, slot) + 0.1 * self.total.sum(dim=0)


def stateful(bench: Bench, make: Callable[[], nn.Module], scratch: int = 4) -> LoadedModel:
    state = (StateSpec("total", "slot", scratch, 12 - scratch),)
    return bench.of_module(make, inputs=(X, SLOT), outputs=(Y,), axes=AXES, state=state)


@pytest.mark.parametrize("scratch", [1, 4])
def test_declared_state_is_admitted_and_live_slots_stay_as_they_were(bench: Bench, scratch: int) -> None:
    """Proven in scratch slots, to the bit beside what requests hold."""
    model = stateful(bench, Counter, scratch)
    live = model.state["total"][: 12 - scratch]
    live.copy_(torch.randn(live.shape))
    before = live.clone()
    _, verdict = bench.admit(model, Bucket.of(batch=4))
    assert verdict == Verdict()
    assert torch.equal(live, before)


@pytest.mark.parametrize("make", [WritesBeside, ReadsBeside])
def test_state_beside_the_named_slots_is_refused(bench: Bench, make: Callable[[], nn.Module]) -> None:
    """A declaration covers the slots of the request's rows and nothing else."""
    with pytest.raises(CaptureRefused) as refused:
        bench.admit(stateful(bench, make), Bucket.of(batch=4))
    assert refused.value.reason is RefusalReason.STATEFUL


def test_an_undeclared_buffer_is_refused_beside_a_declared_one(bench: Bench) -> None:
    """Only what is declared is exempt."""

    class Two(Counter):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor, slot: Tensor) -> Tensor:
            self.calls.add_(1)
            return super().forward(x, slot)

    with pytest.raises(CaptureRefused, match="calls"):
        bench.admit(stateful(bench, Two), Bucket.of(batch=4))


def test_random_numbers_of_other_threads_are_not_the_models(bench: Bench) -> None:
    """Trace identifiers draw from Python's generator all the time."""
    stop = threading.Event()

    def draw() -> None:
        while not stop.is_set():
            random.random()

    drawing = threading.Thread(target=draw)
    drawing.start()
    try:
        model = bench.of_module(
            lambda: nn.Sequential(nn.Linear(4, 4)), inputs=(InputSpec("input", X.datatype, X.shape),), outputs=(Y,), axes=AXES
        )
        _, verdict = bench.admit(model, Bucket.of(batch=4))
    finally:
        stop.set()
        drawing.join()
    assert verdict == Verdict()


def test_without_values_the_verdict_waits(bench: Bench) -> None:
    """Traffic brings integers; then the same model is proven."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 4)

        def forward(self, slot: Tensor) -> Tensor:
            y: Tensor = self.table(slot)
            return y

    model = bench.of_module(Table, inputs=(SLOT,), outputs=(Y,), axes=AXES)
    with pytest.raises(NotYetProvable):
        bench.admit(model, Bucket.of(batch=4))
    bench.proof.accepted.remember(model.spec.name, {"slot": host(torch.tensor([4, 0, 2]))})
    try:
        assert bench.admit(model, Bucket.of(batch=4))[1] == Verdict()
    finally:
        bench.proof.accepted.forget(model.spec.name)


def test_each_variant_is_judged_by_itself(bench: Bench) -> None:
    """One that changes itself does not take the others along."""

    class Modes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: Tensor, mode: str) -> Tensor:
            if mode == "counting":
                self.calls += 1
            return x * 2

    model = bench.of_module(Modes, inputs=(X,), outputs=(Y,), axes=AXES, variants=(("mode", ("plain", "counting")),))
    bench.admit(model, Bucket.of(batch=4), (("mode", "plain"),))
    with pytest.raises(CaptureRefused, match="calls"):
        bench.admit(model, Bucket.of(batch=4), (("mode", "counting"),))


def eager(bench: Bench, model: LoadedModel, x: Tensor) -> Tensor:
    batch = Batch([Part({"x": host(x)}, {"batch": len(x)})], {"batch": len(x)})
    return value(bench.lane.submit(lambda: bench.backend.run_eager(model, (), batch)[0]).result()["output"])


def test_what_was_compiled_in_a_trial_run_does_not_harm_later_ones(bench: Bench) -> None:
    """torch.cond compiles itself; what it compiled under a dispatch mode fails without one."""
    path = MODELS / "control_flow.py"
    model, x = bench.of_file(path), torch.randn(3, 6)
    with pytest.raises(CaptureRefused, match="cond"):
        bench.admit(model, Bucket.of(batch=4))
    with torch.no_grad():
        torch.testing.assert_close(eager(bench, model, x), file_module(path).make_model()(x))


def test_a_file_that_registers_operators_is_run_once(bench: Bench) -> None:
    """The instance to judge by must not take the operator away from the one that serves."""
    model, x = bench.of_file(MODULES / "own_operator.py"), torch.randn(3, 6)
    recording, verdict = bench.admit(model, Bucket.of(batch=4))
    assert verdict == Verdict()
    with torch.no_grad():
        expected = 2 * model.module.get_submodule("head")(x)
    torch.testing.assert_close(eager(bench, model, x), expected)
    torch.testing.assert_close(value(bench.replay(recording, {"x": x}, {"batch": 3}, verdict.padding)["output"]), expected)
