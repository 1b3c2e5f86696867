"""What serving promises, whatever the device. Collected by tests/service/test_serving.py (CPU) and tests/gpu/test_serving.py."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
import torch

from cachepolicy.cache import GraphEntry
from cachepolicy.reasons import RefusalReason
from service.backends.base import Batch, Outputs, Padding
from service.errors import CaptureRefused, OutOfDeviceMemory
from service.messages import GraphMode, Path
from service.recorder import Graph
from service.tensors import HostTensor
from tests.harness import MODULES, ask, eager, running, served, value, warm_all

TOLERANCE = {torch.float32: (1e-4, 1e-5), torch.bfloat16: (5e-2, 5e-2)}


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal within the datatype's tolerance."""
    rtol, atol = TOLERANCE.get(want.dtype, (0.0, 0.0))
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)


async def test_decode_steps_of_random_mixes_equal_eager_and_touch_no_foreign_slot(device: str) -> None:
    """200 steps over 64 slots at padded batches from 1 to 64: values equal eager's; no other slot's cache changes by a bit."""
    rng, context = random.Random(1), 64
    sets = [f"models.3.args.context={context}", f"models.3.inputs.positions.range=[0, {context - 1}]"]
    async with running(device, sets=["cache.capture.background=false", *sets]) as node:
        await warm_all(node, "decode")
        mine = served(node, "decode").loaded
        reference = node.admin.fresh(served(node, "decode"))
        position = [0] * 64
        paths = []
        for step in range(200):
            count = (1, 64)[step] if step < 2 else rng.randint(1, 64)
            slots = rng.sample(range(64), count)
            inputs = {
                "tokens": torch.tensor([rng.randrange(1024) for _ in slots]),
                "slots": torch.tensor(slots),
                "positions": torch.tensor([position[slot] % context for slot in slots]),
            }
            before = {name: buffer.clone() for name, buffer in mine.state.items()}
            reply = await ask(node, "decode", inputs)
            paths.append(reply.outcome.path)
            close(value(reply.outputs["logits"]), eager(reference, inputs)["logits"])
            foreign = sorted(set(range(64)) - set(slots))
            for name, buffer in mine.state.items():
                assert torch.equal(buffer[foreign], before[name][foreign]), f"step {step} changed a foreign slot of {name}"
                close(buffer[slots].cpu().float(), reference.state[name][slots].cpu().float())
            for slot in slots:
                position[slot] += 1
        assert set(paths) == {Path.REPLAY}


async def test_a_graph_of_too_many_nodes_is_refused_and_its_model_served(device: str) -> None:
    """The bound holds whoever asks; requests and explain name it."""
    async with running(device, sets=["cache.capture.background=false", "cache.capture.max_nodes=20"]) as node:
        with pytest.raises(CaptureRefused, match=r"operations, and cache\.capture\.max_nodes is 20") as refused:
            await node.admin.warm("chain32", "", {"batch": 4}, {}, force=True)
        assert refused.value.reason is RefusalReason.CAPTURE_ERROR
        x = {"x": torch.randn(3, 1024)}
        reply = await ask(node, "chain32", x)
        assert (reply.outcome.path, reply.outcome.reason) == (Path.EAGER, "refused")
        assert "max_nodes is 20" in reply.outcome.detail
        close(value(reply.outputs["y"]), eager(served(node, "chain32").loaded, x)["y"])
        await node.admin.warm("mlp", "", {"batch": 4}, {}, force=True)


async def test_one_batch_never_names_a_slot_twice(device: str) -> None:
    """Concurrent requests for one slot run one after the other, in order of arrival."""
    async with running(device) as node:
        reference = node.admin.fresh(served(node, "decode"))
        steps = [{"tokens": torch.tensor([7 + i]), "slots": torch.tensor([3]), "positions": torch.tensor([i])} for i in range(12)]
        replies = await asyncio.gather(*(ask(node, "decode", step) for step in steps))
        for reply, step in zip(replies, steps, strict=True):
            assert reply.outcome.batch_rows == 1
            close(value(reply.outputs["logits"]), eager(reference, step)["logits"])


async def test_variants_interleaved_never_mix(device: str) -> None:
    """Three variants over 10,000 concurrent requests: every reply is its own variant's answer to its own values."""
    rng = random.Random(2)
    async with running(device) as node:
        await warm_all(node, "adapters")
        loaded = served(node, "adapters").loaded
        inputs = [{"x": torch.randn(rng.randint(1, 4), 128)} for _ in range(40)]
        names = ("base", "legal", "medical")
        wanted = {(i, name): eager(loaded, inputs[i], {"adapter": name})["y"] for i in range(40) for name in names}
        paths: dict[Path, int] = dict.fromkeys(Path, 0)

        async def client(seed: int) -> None:
            own = random.Random(seed)
            for _ in range(10_000 // 50):
                index, name = own.randrange(40), own.choice(names)
                reply = await ask(node, "adapters", inputs[index], {"adapter": name})
                close(value(reply.outputs["y"]), wanted[index, name])
                assert dict(reply.outcome.variant) == {"adapter": name}
                paths[reply.outcome.path] += 1

        await asyncio.gather(*(client(seed) for seed in range(50)))
        assert paths[Path.REPLAY] == 10_000


async def test_a_step_that_finds_no_memory_gets_that_of_the_graphs(device: str) -> None:
    """Graphs are evicted and the step runs once more; one that fails again is refused, and the worker goes on."""
    text = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py", "service.models.demo:*"]}}
models:
  - {{name: hungry, factory: "file:{MODULES}/hungry.py", rows: independent}}
  - {{name: mlp, factory: "service.models.demo:mlp", inputs: {{x: {{datatype: FP32, shape: [batch, 256]}}}}}}
"""
    async with running(device, text, ["cache.capture.background=false"]) as node:
        for batch in (1, 4):
            await node.admin.warm("mlp", "", {"batch": batch}, {}, force=True)
        node.admin.pin("mlp", "", {"batch": 1}, {}, pinned=True)
        x = torch.full((2, 4), 101.0)
        reply = await ask(node, "hungry", {"x": x})
        close(value(*reply.outputs.values()), x * 2)
        assert [graph.bucket.as_dict() for graph in node.admin.graphs("mlp") if graph.state == "serving"] == [{"batch": 1}]
        with pytest.raises(OutOfDeviceMemory, match="tried to allocate"):
            await ask(node, "hungry", {"x": torch.full((1, 4), 102.0)})
        close(value(*(await ask(node, "hungry", {"x": torch.ones(1, 4)})).outputs.values()), torch.full((1, 4), 2.0))
        assert (await ask(node, "mlp", {"x": torch.zeros(1, 256)})).outcome.path is Path.REPLAY


async def test_a_refused_variant_leaves_the_others_replaying(device: str) -> None:
    """One variant can't be recorded: it runs eagerly with the reason, the others replay."""
    text = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
models:
  - name: m
    factory: file:{MODULES}/variants.py
    variants: {{tone: [calm, loud, rude]}}
    mode: full
    axes: {{batch: {{max: 4, buckets: [4]}}}}
"""
    async with running(device, text) as node:
        loaded = served(node, "m").loaded
        inputs = {"x": torch.randn(3, 8)}
        for round_ in range(60):
            for tone in ("calm", "loud", "rude"):
                reply = await ask(node, "m", inputs, {"tone": tone})
                close(value(reply.outputs["output"]), eager(loaded, inputs, {"tone": tone})["output"])
                if round_ == 59:
                    assert (reply.outcome.path is Path.REPLAY) == (tone != "rude"), reply.outcome
                    assert tone != "rude" or str(reply.outcome.reason) == "refused"
            await asyncio.sleep(0.05 if round_ < 59 else 0)


async def test_masked_encoder_equals_unpadded_eager_at_every_length(device: str) -> None:
    """Lengths 1 … 512, padded to five buckets: the worker's mask hides the padding."""
    async with running(device, sets=["models.2.axes.batch.buckets=[2, 16]"]) as node:
        for seq in (512, 256, 128, 64, 32):
            await node.admin.warm("encoder", "", {"batch": 2, "seq": seq}, {}, force=True)
        loaded = served(node, "encoder").loaded
        for seq in (*range(1, 512, 3), 512):
            tokens = torch.randint(0, 30000, (2, seq))
            reply = await ask(node, "encoder", {"tokens": tokens})
            want = eager(loaded, {"tokens": tokens, "mask": torch.ones_like(tokens, dtype=torch.bool)})
            close(value(reply.outputs["embedding"]), want["embedding"])
            assert reply.outcome.path is Path.REPLAY


async def test_a_long_request_leaves_nothing_for_a_short_one(device: str) -> None:
    """The answer to a short request is the same to the bit after whatever long request came before."""
    async with running(device, sets=["models.2.axes.batch.buckets=[4, 16]"]) as node:
        await node.admin.warm("encoder", "", {"batch": 4, "seq": 64}, {}, force=True)
        short = {"tokens": torch.randint(0, 30000, (1, 5))}
        answers = []
        for _ in range(4):
            await ask(node, "encoder", {"tokens": torch.randint(0, 30000, (4, 64))})
            reply = await ask(node, "encoder", short)
            assert reply.outcome.path is Path.REPLAY
            answers.append(value(reply.outputs["embedding"]))
        assert all(torch.equal(answer, answers[0]) for answer in answers)


@pytest.mark.parametrize("model", ["mlp", "chain32", "encoder", "adapters"])
async def test_every_bucket_and_many_sizes_below_equal_eager(device: str, model: str) -> None:
    """For each demo model: replay at every bucket, full and padded, equals eager on the exact size."""
    rng = random.Random(3)
    sets = ["cache.budget=4GiB"]
    if device == "cpu":  # 15 buckets of up to 16 × 512 tokens take minutes there
        sets += ["models.2.axes.batch={max: 4, buckets: [1, 4]}", "models.2.axes.seq={max: 96, buckets: [16, 32, 96]}"]
    async with running(device, sets=sets) as node:
        await warm_all(node, model)
        found = served(node, model)
        for variant in found.spec.all_variants():
            for bucket in found.ladder.buckets():
                sizes = [bucket.as_dict()] + [{axis: rng.randint(1, size) for axis, size in bucket.sizes} for _ in range(3)]
                for size in sizes:
                    inputs = random_inputs(model, size)
                    reply = await ask(node, model, inputs, dict(variant))
                    if "mask" in {spec.name for spec in found.spec.inputs}:
                        inputs = {**inputs, "mask": torch.ones_like(inputs["tokens"], dtype=torch.bool)}
                    for name, want in eager(found.loaded, inputs, dict(variant)).items():
                        close(value(reply.outputs[name]), want)
                    assert reply.outcome.path is Path.REPLAY, (size, reply.outcome)


def random_inputs(model: str, size: dict[str, int]) -> dict[str, torch.Tensor]:
    """Values for a demo model without state."""
    if model == "encoder":
        return {"tokens": torch.randint(0, 30000, (size["batch"], size["seq"]))}
    width = {"mlp": 256, "chain32": 1024, "adapters": 128}[model]
    return {"x": torch.randn(size["batch"], width)}


async def test_concurrent_clients_get_their_own_values_and_keep_them(device: str) -> None:
    """32 clients on three models; what a client holds never changes, whatever runs later."""
    async with running(device) as node:
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []

        async def client(number: int) -> None:
            model = ("mlp", "chain32", "adapters")[number % 3]
            own = torch.Generator().manual_seed(number)
            loaded = served(node, model).loaded
            width = {"mlp": 256, "chain32": 1024, "adapters": 128}[model]
            for _ in range(30):
                x = torch.randn(1 + number % 5, width, generator=own)
                reply = await ask(node, model, {"x": x})
                variant = {"adapter": "base"} if model == "adapters" else {}
                raw = torch.frombuffer(bytearray(reply.outputs["y"].data), dtype=torch.float32).reshape(x.shape)
                want = eager(loaded, {"x": x}, variant)["y"]
                close(raw, want)
                kept.append((value(reply.outputs["y"]), want))

        await asyncio.gather(*(client(number) for number in range(32)))
        for got, want in kept:
            close(got, want)


async def test_mode_applies_from_the_next_batch_on_and_expires(device: str) -> None:
    """Mode none runs eagerly with the reason and its origin; when it expires, graphs serve again."""
    async with running(device) as node:
        await node.admin.warm("mlp", "", {"batch": 2}, {}, force=True)
        x = {"x": torch.randn(2, 256)}
        assert (await ask(node, "mlp", x)).outcome.path is Path.REPLAY
        state = node.admin.set_mode("mlp", "", {}, "none", 0.3)
        reply = await ask(node, "mlp", x)
        assert (reply.outcome.path, str(reply.outcome.reason)) == (Path.EAGER, "disabled")
        assert reply.outcome.mode == state
        assert state.origin == "rpc"
        await asyncio.sleep(0.35)
        reply = await ask(node, "mlp", x)
        assert reply.outcome.path is Path.REPLAY
        assert reply.outcome.mode is not None
        assert reply.outcome.mode.mode is GraphMode.AUTO


async def test_a_graph_that_goes_wrong_is_caught_by_the_audit_and_retired(device: str) -> None:
    """An injected wrong graph is found within twice the audit's interval of replays, and refused as a mismatch."""
    async with running(device, sets=["cache.audit=20%", "cache.capture.background=false"]) as node:
        auditing = asyncio.create_task(node.worker.audit_when_idle())
        await node.admin.warm("mlp", "", {"batch": 2}, {}, force=True)
        x = {"x": torch.randn(2, 256)}
        for _ in range(10):
            await ask(node, "mlp", x)
        entry = next(iter(node.capturer.cache))
        spoil(entry)
        replays = 0
        while (await ask(node, "mlp", x)).outcome.path is Path.REPLAY:
            replays += 1
            assert replays <= 2 * 5
            await asyncio.sleep(0.15)
        reply = await ask(node, "mlp", x)
        assert str(reply.outcome.reason) == "refused"
        assert reply.outcome.detail.startswith("mismatch")
        close(value(reply.outputs["y"]), eager(served(node, "mlp").loaded, x)["y"])
        auditing.cancel()


def spoil(entry: GraphEntry) -> None:
    """Make a graph's replays wrong from now on."""
    graph = entry.payload
    assert isinstance(graph, Graph)
    recording = graph.recording

    class Wrong:
        def __getattr__(self, name: str) -> Any:
            return getattr(recording, name)

        def replay(self, batch: Batch, padding: Padding) -> list[Outputs]:
            parts = recording.replay(batch, padding)
            return [{name: HostTensor(t.datatype, t.shape, bytes(len(t.data))) for name, t in part.items()} for part in parts]

    entry.payload = Graph(Wrong(), graph.padding)  # type: ignore[arg-type]
