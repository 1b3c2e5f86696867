"""What a backend promises, whatever the device.

Collected by tests/service/backends/test_contract.py (CPU) and tests/gpu/test_backends.py.
"""

from __future__ import annotations

import random
from threading import Event

import numpy as np
import pytest
import torch
from torch import nn

from cachepolicy.buckets import Bucket
from cachepolicy.reasons import RefusalReason
from service.backends.base import Padding
from service.choices import Compile
from service.errors import CaptureRefused, ModelRaised
from service.tensors import Datatype, HostTensor
from tests.backends import Rig, close, integers, model, part, ragged, reals, tokens_spec
from tests.modules import steps


@pytest.mark.parametrize("datatype", list(Datatype))
def test_every_datatype_passes_bit_for_bit(rig: Rig, datatype: Datatype) -> None:
    """Random bit patterns, NaN payloads among them, come back as they were sent, at every real size."""
    echo = model(rig, steps.Echo(), inputs={"x": (datatype, ["batch", 5])}, outputs={"y": (datatype, ["batch", 5])})
    recording = rig.record(echo, Bucket.of(batch=4))
    source = np.random.default_rng(1)
    for rows in (4, 1, 3, 2, 4):
        raw = source.integers(0, 2 if datatype is Datatype.BOOL else 256, rows * 5 * datatype.itemsize, np.uint8).tobytes()
        given = part({"x": HostTensor(datatype, (rows, 5), raw)}, batch=rows)
        for outputs in (rig.replay(recording, [given]), rig.eager(echo, [given])):
            assert bytes(outputs[0]["y"].data) == raw
            assert outputs[0]["y"].shape == (rows, 5)


def test_padded_replay_equals_eager_at_every_size_of_two_axes(rig: Rig) -> None:
    """A masked encoder at batch 1…4 and seq 1…8 in one bucket; outputs along either axis are cut back to the real sizes."""
    encoder = model(rig, steps.Encoder(), **tokens_spec())
    recording = rig.record(encoder, Bucket.of(batch=4, seq=8))
    for batch in (4, 3, 1, 2):
        for seq in (8, 1, 5, 2, 7):
            given = part({"tokens": integers(batch, seq)}, batch=batch, seq=seq)
            got, want = rig.replay(recording, [given])[0], rig.eager(encoder, [given])[0]
            assert got["pooled"].shape == (batch, 16)
            assert got["hidden"].shape == (batch, seq, 16)
            for name in ("pooled", "hidden"):
                close(got[name], want[name])


def test_merged_parts_of_different_lengths_get_their_own_answers(rig: Rig) -> None:
    """Requests of different seq lengths share a replay; each gets what it would get alone."""
    encoder = model(rig, steps.Encoder(), **tokens_spec())
    recording = rig.record(encoder, Bucket.of(batch=8, seq=8))
    parts = [part({"tokens": integers(batch, seq, seed=seq)}, batch=batch, seq=seq) for batch, seq in ((1, 8), (3, 2), (2, 5))]
    for given, got in zip(parts, rig.replay(recording, parts), strict=True):
        want = rig.eager(encoder, [given])[0]
        for name in ("pooled", "hidden"):
            assert got[name].shape == want[name].shape
            close(got[name], want[name])


def test_eager_parts_of_one_size_are_stacked_and_split(rig: Rig) -> None:
    """A merged eager batch gives each request its own rows, filled inputs included."""
    encoder = model(rig, steps.Encoder(), **tokens_spec())
    parts = [part({"tokens": integers(batch, 4, seed=batch)}, batch=batch, seq=4) for batch in (2, 1, 3)]
    for given, got in zip(parts, rig.eager(encoder, parts), strict=True):
        want = rig.eager(encoder, [given])[0]
        close(got["pooled"], want["pooled"])


def test_filled_inputs_say_what_is_real(rig: Rig) -> None:
    """valid, length and position are rewritten for each batch, padding rows included; eager gets them at its exact size."""
    spy = model(rig, steps.FillSpy(), **ragged())
    recording = rig.record(spy, Bucket.of(batch=4, seq=3))
    rig.replay(recording, [part({"x": reals(4, 3)}, batch=4, seq=3)])
    parts = [part({"x": reals(1, 2)}, batch=1, seq=2), part({"x": reals(2, 1)}, batch=2, seq=1)]
    got = rig.replay(recording, parts)[0]
    assert got["valid"].array().reshape(4, 3).tolist() == [[True, True, False], [True, False, False], [True, False, False], [False] * 3]
    assert got["length"].array().reshape(4).tolist() == [2, 1, 1, 0]
    assert got["position"].array().reshape(4, 3).tolist() == [[0, 1, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    exact = model(rig, steps.FillSpy(), **ragged(batch=1, seq=2))
    assert rig.eager(exact, parts[:1])[0]["position"].array().reshape(1, 2).tolist() == [[0, 1]]


def test_nothing_of_an_earlier_batch_is_left(rig: Rig) -> None:
    """The whole static input after a long and then a short request: real values, the pad value, or a repeat of the last row."""
    spy = model(rig, steps.FillSpy(), **ragged(pad=7.0))
    recording = rig.record(spy, Bucket.of(batch=4, seq=3))
    rig.replay(recording, [part({"x": reals(4, 3, scale=1e6)}, batch=4, seq=3)])
    given = part({"x": reals(2, 2)}, batch=2, seq=2)
    sent = given.inputs["x"].array()
    expected = np.full((4, 3), 7.0, np.float32)
    expected[:2, :2] = sent
    np.testing.assert_array_equal(rig.replay(recording, [given])[0]["whole"].array().reshape(4, 3), expected)
    expected[2:] = expected[1]
    np.testing.assert_array_equal(rig.replay(recording, [given], Padding.REPEAT)[0]["whole"].array().reshape(4, 3), expected)


def test_batch_axis_need_not_come_first(rig: Rig) -> None:
    """Rows along dimension 1 are stacked, padded and cut along dimension 1."""
    shape: list[str | int] = ["seq", "batch"]
    x, y = {"x": (Datatype.FP32, shape)}, {"y": (Datatype.FP32, shape)}
    twice = model(rig, steps.Twice(), inputs=x, outputs=y, axes={"batch": (4,), "seq": (3,)})
    recording = rig.record(twice, Bucket.of(batch=4, seq=3))
    parts = [part({"x": reals(3, 2)}, batch=2, seq=3), part({"x": reals(2, 1)}, batch=1, seq=2)]
    for given, got in zip(parts, rig.replay(recording, parts), strict=True):
        np.testing.assert_array_equal(got["y"].array(), 2 * given.inputs["x"].array())
    same = [part({"x": reals(3, 2)}, batch=2, seq=3), part({"x": reals(3, 1)}, batch=1, seq=3)]
    for given, got in zip(same, rig.eager(twice, same), strict=True):
        np.testing.assert_array_equal(got["y"].array(), 2 * given.inputs["x"].array())


def test_output_kept_by_a_client_never_changes(rig: Rig) -> None:
    """The input itself, one tensor twice and a view of it as outputs; all are the caller's own."""
    names = {"echo": 4, "score": 4, "again": 4, "half": 2}
    aliasing = model(
        rig,
        steps.Aliasing(),
        inputs={"x": (Datatype.FP32, ["batch", 4])},
        outputs={name: (Datatype.FP32, ["batch", width]) for name, width in names.items()},
    )
    recording = rig.record(aliasing, Bucket.of(batch=4))
    kept = []
    for seed in range(6):
        given = part({"x": reals(3, 4, seed=seed)}, batch=3)
        want, got = rig.eager(aliasing, [given])[0], rig.replay(recording, [given])[0]
        kept += [(got, {name: bytes(tensor.data) for name, tensor in got.items()})]
        assert bytes(got["echo"].data) == bytes(given.inputs["x"].data)
        for name in names:
            close(got[name], want[name])
    for outputs, before in kept:
        assert {name: bytes(tensor.data) for name, tensor in outputs.items()} == before


def test_declared_state_moves_in_the_named_slots_only(rig: Rig) -> None:
    """Random mixes of slots at padded sizes: answers as eager's on a twin, named slots as the twin's, foreign slots bit for bit."""
    mine, twin = rig.counter_model(), rig.counter_model()
    recording = rig.record(mine, Bucket.of(batch=8))
    chance = random.Random(3)
    for step in range(40):
        slots = chance.sample(range(16), chance.randint(1, 8))
        given = part({"x": reals(len(slots), 4, seed=step), "slot": HostTensor.of(Datatype.INT64, np.array(slots))}, batch=len(slots))
        before = mine.state["total"].clone()
        got, want = rig.replay(recording, [given])[0], rig.eager(twin, [given])[0]
        close(got["y"], want["y"])
        foreign = sorted(set(range(16)) - set(slots))
        assert torch.equal(mine.state["total"][foreign], before[foreign])
        torch.testing.assert_close(mine.state["total"][slots], twin.state["total"][slots])


def test_recording_touches_scratch_slots_only(rig: Rig) -> None:
    """Warm-up and capture leave every slot that a request may name as it was."""
    counter = rig.counter_model()
    rig.record(counter, Bucket.of(batch=8))
    assert not counter.state["total"][:16].any()


def test_variants_have_recordings_of_their_own(rig: Rig) -> None:
    """Each variant of a closed set computes its own function, interleaved."""
    choices = ("plus", "minus", "zero")
    chosen = model(
        rig,
        steps.Chosen(),
        inputs={"x": (Datatype.FP32, ["batch", 2])},
        outputs={"y": (Datatype.FP32, ["batch", 2])},
        variants=(("sign", choices),),
    )
    recordings = {choice: rig.record(chosen, Bucket.of(batch=2), variant=(("sign", choice),)) for choice in choices}
    chance = random.Random(5)
    for seed in range(30):
        choice = chance.choice(choices)
        given = part({"x": reals(1, 2, seed=seed)}, batch=1)
        want = {"plus": 1, "minus": -1, "zero": 0}[choice] * given.inputs["x"].array()
        np.testing.assert_array_equal(rig.replay(recordings[choice], [given])[0]["y"].array(), want)
        np.testing.assert_array_equal(rig.eager(chosen, [given], variant=(("sign", choice),))[0]["y"].array(), want)


@pytest.mark.parametrize(("module", "reason"), steps.REFUSED, ids=lambda value: getattr(value, "__name__", str(value)))
def test_what_can_not_be_recorded_is_refused_with_its_reason(rig: Rig, module: type[nn.Module], reason: RefusalReason) -> None:
    """One small model for each reason; afterwards the model still answers eagerly."""
    step = rig.plain_model(module())
    with pytest.raises(CaptureRefused) as refused:
        rig.record(step, Bucket.of(batch=4))
    assert refused.value.reason is reason, refused.value.detail
    assert refused.value.detail
    assert rig.eager(step, [part({"x": reals(2, 4)}, batch=2)])[0]["y"].shape[1] == 4


def test_part_left_in_training_mode_is_refused(rig: Rig) -> None:
    """A norm that would move its statistics, and a whole model nobody put into eval mode; the detail says which part."""
    inner, whole = rig.plain_model(steps.HasANorm()), rig.plain_model(steps.Twice())
    inner.module.get_submodule("norm").train()
    whole.module.train()
    for step, told in ((inner, "BatchNorm1d is in training mode in norm:"), (whole, "Twice is in training mode:")):
        with pytest.raises(CaptureRefused, match=f"training_mode: {told}"):
            rig.record(step, Bucket.of(batch=4))


def test_refusal_names_operation_and_line(rig: Rig) -> None:
    """The detail says which operation blocks, and where the model's code calls it."""
    with pytest.raises(CaptureRefused, match=r"_local_scalar_dense.* at steps\.py:\d+, in forward"):
        rig.record(rig.plain_model(steps.BranchesOnValue()), Bucket.of(batch=4))


@pytest.mark.parametrize("module", steps.ACCEPTED, ids=lambda value: value.__name__)
def test_what_can_be_recorded_is_not_refused(rig: Rig, module: type[nn.Module]) -> None:
    """Layers built on the first call, RNNs, autocast, dropout in eval mode, constants in the code: recorded, and equal to eager."""
    step = rig.plain_model(module())
    recording = rig.record(step, Bucket.of(batch=4))
    for seed, rows in enumerate((4, 1, 3)):
        given = part({"x": reals(rows, 4, seed=seed)}, batch=rows)
        close(rig.replay(recording, [given])[0]["y"], rig.eager(step, [given])[0]["y"], rtol=2e-2, atol=2e-2)


def test_failed_recordings_leave_nothing_behind(rig: Rig) -> None:
    """After 20 failures of two kinds: eager answers are unchanged, random numbers still move, a good model is recorded."""
    bad, sync, good = rig.plain_model(steps.RaisesWhileRecorded()), rig.plain_model(steps.BranchesOnValue()), rig.plain_model(steps.Wide())
    noisy = rig.plain_model(steps.Noise())
    given = [part({"x": reals(3, 4)}, batch=3)]
    want = rig.eager(good, given)[0]["y"]
    for _ in range(20):
        with pytest.raises(CaptureRefused, match="does not like to be recorded") as refused:
            rig.record(bad, Bucket.of(batch=4))
        assert refused.value.reason is RefusalReason.CAPTURE_ERROR
        with pytest.raises(CaptureRefused):
            rig.record(sync, Bucket.of(batch=4))
        assert bytes(rig.eager(noisy, given)[0]["y"].data) != bytes(rig.eager(noisy, given)[0]["y"].data)
    close(rig.eager(good, given)[0]["y"], want)
    close(rig.replay(rig.record(good, Bucket.of(batch=4)), given)[0]["y"], want)


def test_closing_in_random_order_leaves_survivors_bit_equal(rig: Rig) -> None:
    """Six buckets of one model and one of another; one after the other is closed, some recorded anew."""
    wide, other = rig.plain_model(steps.Wide()), rig.plain_model(steps.Aggregate())
    chance = random.Random(11)
    given = [part({"x": reals(1, 4, seed=9)}, batch=1)]
    alive = {
        (name, size): rig.record(step, Bucket.of(batch=size)) for name, step in (("wide", wide), ("other", other)) for size in (32, 8, 2)
    }
    want = {key: bytes(rig.replay(recording, given)[0]["y"].data) for key, recording in alive.items()}
    for _ in range(12):
        key = chance.choice(list(want))
        if key in alive:
            rig.close(alive.pop(key))
        else:
            alive[key] = rig.record(wide if key[0] == "wide" else other, Bucket.of(batch=key[1]))
        for name, recording in alive.items():
            assert bytes(rig.replay(recording, given)[0]["y"].data) == want[name]


def test_recording_beside_eager_traffic_disturbs_neither(rig: Rig) -> None:
    """The lane answers eagerly without a pause while other models are recorded and closed."""
    busy, fresh = rig.plain_model(steps.Wide()), rig.plain_model(steps.Aggregate())
    given = [part({"x": reals(3, 4)}, batch=3)]
    want = bytes(rig.eager(busy, given)[0]["y"].data)
    stop = Event()

    def traffic() -> int:
        count = 0
        while not stop.is_set():
            assert bytes(rig.backend.run_eager(busy, (), rig.batch(busy, given))[0]["y"].data) == want
            count += 1
        return count

    served = rig.lane.submit(traffic)
    try:
        for _ in range(15):
            recording = rig.record(fresh, Bucket.of(batch=4))
            rig.capturer.submit(recording.close).result()  # the lane never had it
    finally:
        stop.set()
    assert served.result() > 0


def test_weights_updated_in_place_are_seen(rig: Rig) -> None:
    """A replay reads the weights where they are; `addresses_unchanged` tells when they are somewhere else."""
    wide = rig.plain_model(steps.Wide())
    recording = rig.record(wide, Bucket.of(batch=4))
    given = [part({"x": reals(3, 4)}, batch=3)]
    with torch.no_grad():
        for weight in wide.module.parameters():
            weight.mul_(-0.5)
    rig.synchronise()
    close(rig.replay(recording, given)[0]["y"], rig.eager(wide, given)[0]["y"], rtol=1e-5, atol=1e-6)
    assert recording.addresses_unchanged()
    layer = next(part for part in wide.module.modules() if isinstance(part, nn.Linear))
    layer.weight = nn.Parameter(layer.weight.detach().clone(), requires_grad=False)
    assert not recording.addresses_unchanged()


def test_eager_gives_sizes_that_depend_on_values(rig: Rig) -> None:
    """A single request's output may have any shape; rows of several requests can't be told apart in it."""
    selects = rig.plain_model(steps.SelectsByMask())
    given = part({"x": HostTensor.of(Datatype.FP32, np.array([[1, -1, 2, -2]], np.float32))}, batch=1)
    assert rig.eager(selects, [given])[0]["y"].array().tolist() == [1, 2]
    with pytest.raises(ModelRaised, match="no rows"):
        rig.eager(selects, [given, given])


def test_error_of_the_model_is_told_as_the_models(rig: Rig) -> None:
    """What the model raises, and outputs that are not the declared ones, name the error's type."""
    given = [part({"x": reals(1, 4)}, batch=1)]
    with pytest.raises(ModelRaised, match="KeyError: 'nothing here'"):
        rig.eager(rig.plain_model(steps.Fails()), given)
    with pytest.raises(ModelRaised, match="output y is FP64, declared is FP32"):
        rig.eager(rig.plain_model(steps.WrongType()), given)
    with pytest.raises(CaptureRefused, match="float64"):
        rig.record(rig.plain_model(steps.WrongType()), Bucket.of(batch=4))


def test_compiled_step_equals_eager(rig: Rig) -> None:
    """`compile: inductor` compiles the step before it is recorded; declared state included."""
    wide = rig.plain_model(steps.Wide(), compile=Compile.INDUCTOR)
    recording = rig.record(wide, Bucket.of(batch=4))
    given = [part({"x": reals(3, 4)}, batch=3)]
    close(rig.replay(recording, given)[0]["y"], rig.eager(wide, given)[0]["y"], rtol=1e-4, atol=1e-5)


def test_recording_tells_what_it_took(rig: Rig) -> None:
    """Bytes cover the static buffers; each step of the capture, and the first launch, was timed."""
    recording = rig.record(rig.plain_model(steps.Wide()), Bucket.of(batch=32))
    rig.replay(recording, [part({"x": reals(3, 4)}, batch=3)])
    assert recording.bytes >= 2 * 32 * 4 * 4
    assert recording.nodes > 0
    assert min(recording.timings.warm_up, recording.timings.capture, recording.timings.instantiate, recording.timings.first_launch) > 0
