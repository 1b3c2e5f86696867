"""What only a GPU can show: streams, pools, workspaces, captures that break off, and a lost device."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from cachepolicy.buckets import Bucket
from cachepolicy.reasons import RefusalReason
from service.errors import CaptureRefused, OutOfDeviceMemory
from service.models.loaded import LoadedModel
from tests.backends import Rig, close, opened, part, reals
from tests.modules import cuda_steps, steps

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def opened_rig() -> Iterator[Rig]:
    """The first GPU."""
    with opened("cuda:0") as rig:
        yield rig


@pytest.fixture
def rig(opened_rig: Rig) -> Iterator[Rig]:
    """What a test records is closed after it."""
    yield opened_rig
    opened_rig.close_all()


def reserved(rig: Rig) -> int:
    """Bytes the allocator holds, once garbage and unused blocks went back."""
    gc.collect()
    rig.capturer.submit(torch.cuda.empty_cache).result()
    return rig.backend.memory().detail["reserved"]


def answer(rig: Rig, recording: object, rows: int = 1) -> bytes:
    """The bits a recording gives for a fixed request."""
    return bytes(rig.replay(recording, [part({"x": reals(rows, 4, seed=9)}, batch=rows)])[0]["y"].data)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (cuda_steps.HostConstant, RefusalReason.CPU_TENSOR),
        (cuda_steps.LiteralInCode, RefusalReason.CPU_TENSOR),
        (cuda_steps.WaitsForTheStream, RefusalReason.SYNC),
        (cuda_steps.WaitsForTheDevice, RefusalReason.SYNC),
        (cuda_steps.ForgetsToJoin, RefusalReason.UNJOINED_STREAM),
    ],
)
def test_what_can_not_be_captured_is_refused_with_its_reason(rig: Rig, module: type[nn.Module], reason: RefusalReason) -> None:
    """One small model for each; afterwards it answers eagerly, and a good model is captured."""
    step, wide = rig.plain_model(module()), rig.plain_model(steps.Wide())
    given = [part({"x": reals(2, 4)}, batch=2)]
    want = rig.eager(step, given)[0]["y"]
    with pytest.raises(CaptureRefused) as refused:
        rig.record(step, Bucket.of(batch=4))
    assert refused.value.reason is reason, refused.value.detail
    close(rig.eager(step, given)[0]["y"], want)
    close(rig.replay(rig.record(wide, Bucket.of(batch=4)), given)[0]["y"], rig.eager(wide, given)[0]["y"])


def test_side_streams_that_are_joined_are_captured(rig: Rig) -> None:
    """A step that forks to a new stream at each call and joins it; the lane runs it eagerly more often than there are streams."""
    forks = rig.plain_model(cuda_steps.ForksAndJoins())
    given = [part({"x": reals(3, 4)}, batch=3)]
    want = rig.eager(forks, given)[0]["y"]
    recording = rig.record(forks, Bucket.of(batch=4))
    for _ in range(70):
        close(rig.eager(forks, given)[0]["y"], want)
        close(rig.replay(recording, given)[0]["y"], want)
    close(rig.replay(rig.record(forks, Bucket.of(batch=8)), given)[0]["y"], want)


@pytest.mark.parametrize("module", [steps.RaisesWhileRecorded, cuda_steps.WaitsForTheStream, cuda_steps.ForgetsToJoin])
def test_failed_captures_hold_no_memory_and_leave_the_thread_as_it_was(rig: Rig, module: type[nn.Module]) -> None:
    """Reserved memory is flat over 20 failures, alone in an arena and beside a survivor that stays bit-equal and gets a sibling after."""

    def state() -> tuple[int, bool]:
        return rig.capturer.submit(lambda: (torch.cuda.current_stream().cuda_stream, gc.isenabled())).result()

    bad, noise = rig.plain_model(module()), rig.plain_model(steps.Noise())
    wide = rig.plain_model(steps.Wide())
    before = state()
    survivor = rig.record(wide, Bucket.of(batch=8))
    want = answer(rig, survivor)
    for model in (bad, LoadedModel(bad.spec, bad.module, bad.device, bad.program, wide.weights)):  # its own arena, then the survivor's
        held = []
        for _ in range(21):
            with pytest.raises(CaptureRefused):
                rig.record(model, Bucket.of(batch=4))
            held.append(reserved(rig))
        assert held[-1] <= held[1]  # what the first one took of the survivor's pool stays there until the pool empties
        assert state() == before
        assert answer(rig, survivor) == want
        given = [part({"x": reals(1, 4)}, batch=1)]
        assert bytes(rig.eager(noise, given)[0]["y"].data) != bytes(rig.eager(noise, given)[0]["y"].data)
        sibling = rig.record(wide, Bucket.of(batch=4))
        assert answer(rig, sibling) is not None
        rig.close(sibling)
        assert answer(rig, survivor) == want
    rig.close(survivor)


@pytest.mark.parametrize("own_pool", [False, True])
def test_closing_graphs_overwrites_no_stranger(rig: Rig, own_pool: bool) -> None:
    """Graphs of matrix products closed at random, strangers' tensors around them, workspaces cleared at random: all bit-equal."""
    chance = random.Random(2)
    models = {name: rig.plain_model(module) for name, module in (("wide", cuda_steps.Products(512)), ("big", cuda_steps.Products(2048)))}
    keys = [(name, size) for name in models for size in (32, 8, 2)]
    alive = {key: rig.record(models[key[0]], Bucket.of(batch=key[1]), own_pool=own_pool) for key in keys}
    want = {key: answer(rig, recording) for key, recording in alive.items()}

    def stranger() -> torch.Tensor:
        return torch.full((chance.randint(1, 40) * 2**18,), 1.25, device=rig.device)

    strangers = [rig.lane.submit(stranger).result() for _ in range(8)]
    for _ in range(30):
        match chance.randrange(4):
            case 0:
                rig.lane.submit(torch._C._cuda_clearCublasWorkspaces).result()
            case 1:
                strangers[chance.randrange(8)] = rig.lane.submit(stranger).result()
            case _:
                key = chance.choice(keys)
                if key in alive:
                    rig.close(alive.pop(key))
                else:
                    alive[key] = rig.record(models[key[0]], Bucket.of(batch=key[1]), own_pool=own_pool)
        for key, recording in alive.items():
            assert answer(rig, recording) == want[key]
        assert rig.lane.submit(lambda: all(bool((tensor == 1.25).all()) for tensor in strangers)).result()
    for recording in alive.values():
        rig.close(recording)


def test_an_arena_is_shared_and_given_back_when_it_empties(rig: Rig) -> None:
    """The largest bucket costs nearly all; the others hardly anything; after the last is closed the device has its memory again."""
    wide = rig.plain_model(cuda_steps.Products(2048))
    before = reserved(rig)
    recordings = [rig.record(wide, Bucket.of(batch=size)) for size in (32, 8, 4, 2)]
    assert {recording.arena for recording in recordings} == {wide.weights}
    assert 0 < recordings[0].arena_bytes <= recordings[-1].arena_bytes < 1.5 * recordings[0].arena_bytes
    own = rig.record(wide, Bucket.of(batch=2), own_pool=True)
    assert own.arena == ""
    assert own.bytes > recordings[-1].bytes
    for recording in (*recordings, own):
        assert recording.nodes > 0
        rig.close(recording)
    assert reserved(rig) <= before
    again = rig.record(wide, Bucket.of(batch=4))
    assert len(answer(rig, again)) == 16
    rig.close(again)


def test_reported_bytes_are_what_the_device_lost(rig: Rig) -> None:
    """Pool, static buffers and driver together, against what the driver says is free."""
    model = rig.plain_model(cuda_steps.Products(4096))
    rig.close(rig.record(model, Bucket.of(batch=32)))
    reserved(rig)
    free = rig.backend.memory().free
    recording = rig.record(model, Bucket.of(batch=32), own_pool=True)
    reserved(rig)
    lost = free - rig.backend.memory().free
    assert abs(lost - recording.bytes) <= max(0.1 * recording.bytes, 4 * 2**20)  # the driver hands out 2 MiB at a time
    rig.close(recording)


def test_table_that_is_replaced_later_stays_alive_for_the_graph(rig: Rig) -> None:
    """A model that grows a table by replacing it: the graph keeps what it reads, whatever takes the memory afterwards."""
    grows = rig.plain_model(cuda_steps.GrowsATable())
    small, large = [part({"x": reals(2, 4)}, batch=2)], [part({"x": reals(8, 4)}, batch=8)]
    recording = rig.record(grows, Bucket.of(batch=2))
    want = rig.replay(recording, small)[0]["y"]
    rig.eager(grows, large)
    trash = rig.lane.submit(lambda: [torch.full((2, 4), float("nan"), device=rig.device) for _ in range(1000)]).result()
    close(rig.replay(recording, small)[0]["y"], want)
    assert len(trash) == 1000


def test_too_little_memory_is_refused_and_survived(rig: Rig) -> None:
    """A step that asks for more than there is: refused when recorded, told when run, and nothing is kept of it."""
    greedy = rig.plain_model(cuda_steps.Greedy())
    before = reserved(rig)
    with pytest.raises(CaptureRefused) as refused:
        rig.record(greedy, Bucket.of(batch=4))
    assert refused.value.reason is RefusalReason.OUT_OF_MEMORY
    with pytest.raises(OutOfDeviceMemory):
        rig.eager(greedy, [part({"x": reals(2, 4)}, batch=2)])
    assert reserved(rig) <= before
    wide = rig.plain_model(steps.Wide())
    close(
        rig.replay(rig.record(wide, Bucket.of(batch=4)), [part({"x": reals(2, 4)}, batch=2)])[0]["y"],
        rig.eager(wide, [part({"x": reals(2, 4)}, batch=2)])[0]["y"],
    )


@pytest.mark.parametrize("way", ["eager", "replay", "record"])
def test_sticky_error_is_told_from_a_models_exception(way: str) -> None:
    """An index out of range kills the context: DeviceLost, in a process of its own; a plain exception before it is the model's."""
    script = Path(__file__).parent.parent / "modules" / "lose_device.py"
    done = subprocess.run([sys.executable, script, way], capture_output=True, text=True, cwd=script.parent.parent.parent, check=False)
    assert done.stdout.split() == ["ModelRaised", "DeviceLost", "DeviceLost"], done.stderr[-2000:]
