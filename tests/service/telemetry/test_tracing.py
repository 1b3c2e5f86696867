"""What is traced, by what a real collector gets: trees, names, attributes, links, and what is kept of what is not sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import grpc
import numpy as np
import pytest
import torch

from cachepolicy.buckets import Bucket
from cachepolicy.reasons import FallbackReason
from service.choices import Keep
from service.errors import ConfigError
from service.messages import Outcome, Path
from service.pb.graphcache.v1 import replay_pb2
from service.pb.inference import grpc_service_pb2 as pb
from service.routing import Eager
from service.telemetry.tracing import Allowance, Slow, Tracer
from tests.harness import MODULES
from tests.otlp import Span
from tests.traced import Kept, Traced, traced

TEXT = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
models:
  - name: affine
    factory: file:{MODULES}/affine.py
    rows: independent
    axes: {{batch: {{max: 8, buckets: [2, 8], above: split}}}}
  - name: slow
    factory: file:{MODULES}/slow.py
    rows: independent
    axes: {{batch: {{max: 8, buckets: [8], above: eager}}}}
"""
CALLER = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
UNSAMPLED = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
REPLAY = "graphcache.v1.ReplayService/Replay"


def request(rows: int = 2, model: str = "affine", value: float = 1.0, request_id: str = "") -> replay_pb2.ReplayRequest:
    """A good one."""
    name = "input" if model == "affine" else "x"
    data = np.full((rows, 4), value, np.float32).tobytes()
    return replay_pb2.ReplayRequest(
        model=model, id=request_id, inputs=[replay_pb2.Tensor(name=name, datatype="FP32", shape=(rows, 4), data=data)]
    )


async def servers(of: Traced) -> list[Span]:
    """The roots of requests, once all has been sent."""
    await of.flush()
    return [span for span in of.collector.spans if span.message.kind == 2]


def tree(of: Traced, root: Span) -> list[str]:
    """Names of a root's children, in order of time."""
    children = [span for span in of.collector.of_trace(root.trace) if span.parent == root.id]
    return [span.name for span in sorted(children, key=lambda span: span.message.start_time_unix_nano)]


async def test_a_request_is_one_tree_below_its_callers_span() -> None:
    """SERVER → admission, queue, then replay or fallback; the batch has a trace of its own, and both know each other."""
    async with traced(TEXT) as of:
        await of.node.admin.warm("affine", "", {"batch": 2}, {}, force=True)
        await of.replay.Replay(request(request_id="first"), metadata=(CALLER,))
        of.node.admin.set_mode("affine", "", {}, "none", None)
        await of.replay.Replay(request(request_id="second"))
        first, second = await servers(of)
        assert (first.name, first.trace, first.parent) == (REPLAY, "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
        assert (second.name, second.parent) == (REPLAY, "")
        assert second.trace != first.trace
        assert tree(of, first) == ["graphcache.admission", "graphcache.queue", "graphcache.replay"]
        assert tree(of, second) == ["graphcache.admission", "graphcache.queue", "graphcache.fallback"]
        for server in (first, second):
            told = server.attributes
            assert (told["rpc.system.name"], told["rpc.method"], told["rpc.response.status_code"]) == ("grpc", REPLAY, "OK")
            assert server.resource["service.name"] == "graphcache"
            (batch,) = [span for span in of.collector.named("graphcache.batch") if span.id in server.links]
            assert batch.links == [server.id]
            assert batch.trace != server.trace
            (run,) = [span for span in of.collector.of_trace(server.trace) if span.name in ("graphcache.replay", "graphcache.fallback")]
            assert run.links == [batch.id]
            times = [(span.message.start_time_unix_nano, span.message.end_time_unix_nano) for span in (server, run)]
            assert times[0][0] <= times[1][0] <= times[1][1] <= times[0][1]
        replayed, fallen = first.attributes, second.attributes
        assert replayed["graphcache.request_id"] == "first"
        assert (replayed["graphcache.outcome"], replayed["graphcache.path"], replayed["graphcache.bucket"]) == (
            "replay",
            "replay",
            "batch=2",
        )
        assert replayed["graphcache.key"]
        assert replayed["graphcache.actual_ms"] > 0  # type: ignore[operator]
        assert (fallen["graphcache.fallback.reason"], fallen["graphcache.fallback.detail"]) == ("disabled", "mode none, set by rpc")
        assert (fallen["graphcache.mode"], fallen["graphcache.mode.origin"]) == ("none", "rpc")
        assert fallen["graphcache.nearest_bucket"] == "batch=8"


@pytest.mark.parametrize("reason", FallbackReason)
async def test_every_reason_of_a_fallback_is_kept_though_hardly_anything_is_sampled(reason: FallbackReason) -> None:
    """At a rate of zero, with a caller that does not sample either: all of them, by name, with reason and detail."""
    async with traced(TEXT, sample="0%") as of:
        await of.node.admin.warm("affine", "", {"batch": 2}, {}, force=True)
        for _ in range(3):
            await of.replay.Replay(request())
        of.node.worker._executor._router.route = lambda *_: Eager(reason, "for a test", Bucket.of(batch=2))  # type: ignore[method-assign]
        for _ in range(3):
            await of.replay.Replay(request(), metadata=(UNSAMPLED,))
        found = await servers(of)
        assert [span.attributes["graphcache.fallback.reason"] for span in found] == [str(reason)] * 3
        assert {span.attributes["graphcache.fallback.detail"] for span in found} == {"for a test"}
        assert {tuple(tree(of, span)[-1:]) for span in found if span.parent} == {("graphcache.fallback",)}


async def _rejected(of: Traced) -> None:
    of.node.worker._max_waiting = 0
    await of.replay.Replay(request())


async def _expired(of: Traced) -> None:
    hold = asyncio.ensure_future(of.replay.Replay(request(model="slow")))
    await asyncio.sleep(0.05)
    late = request()
    late.timeout_us = 20_000
    try:
        await of.replay.Replay(late)
    finally:
        await hold


async def _cancelled(of: Traced) -> None:
    call = of.replay.Replay(request(model="slow"))
    await asyncio.sleep(0.05)
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    await asyncio.sleep(0.05)


async def _malformed(of: Traced) -> None:
    await of.replay.Replay(replay_pb2.ReplayRequest(model="affine"))


async def _unknown(of: Traced) -> None:
    await of.replay.Replay(request(model="slower"))


async def _raised(of: Traced) -> None:
    await of.replay.Replay(request(1, "slow", -7.0))


@pytest.mark.parametrize(
    ("act", "outcome", "status", "error", "fault", "stages"),
    [
        (_rejected, "rejected", "RESOURCE_EXHAUSTED", "service.errors.Overloaded", False, ["admission"]),
        (_expired, "expired", "DEADLINE_EXCEEDED", "service.errors.DeadlinePassed", True, ["admission", "queue"]),
        (_cancelled, "cancelled", "CANCELLED", None, False, ["admission", "queue"]),
        (_malformed, "error", "INVALID_ARGUMENT", "service.errors.BadInput", False, ["admission"]),
        (_unknown, "error", "NOT_FOUND", "service.errors.UnknownModel", False, ["admission"]),
        (_raised, "error", "INTERNAL", "builtins.ValueError", True, ["admission", "queue", "fallback"]),
    ],
)
async def test_every_way_to_fail_is_kept_and_told(
    act: Callable[[Traced], Awaitable[None]], outcome: str, status: str, error: str | None, fault: bool, stages: list[str]
) -> None:
    """Nothing is sampled. One exception event for an exception; what is the client's doing is no error of the span's own status."""
    async with traced(TEXT, sample="0%", keep="[error]") as of:
        with suppress(grpc.aio.AioRpcError):
            await act(of)
        (found,) = await servers(of)
        assert (found.attributes["graphcache.outcome"], found.attributes["rpc.response.status_code"]) == (outcome, status)
        assert (found.message.status.code == 2) is fault
        events = [event for event in found.message.events if event.name == "exception"]
        told = [{item.key: item.value.string_value for item in event.attributes} for event in events]
        assert [event["exception.type"] for event in told] == ([] if error is None else [error])
        assert "minus seven" not in str(told)
        assert tree(of, found) == [f"graphcache.{stage}" for stage in stages]


async def test_a_call_whose_deadline_passes_is_not_one_that_was_cancelled() -> None:
    """GRPC cancels both alike; the worker's own clock may see the deadline first."""
    async with traced(TEXT, sample="0%") as of:
        with pytest.raises(grpc.aio.AioRpcError):
            await of.replay.Replay(request(model="slow"), timeout=0.05)
        (found,) = await servers(of)
        assert found.attributes["rpc.response.status_code"] == "DEADLINE_EXCEEDED"


async def test_messages_of_streams_are_requests() -> None:
    """Both protocols: a span for each message under the stream's caller, one that fails among them; none for the stream itself."""
    async with traced(TEXT) as of:
        stream = of.replay.ReplayStream(None, metadata=(CALLER,))
        for message in (request(request_id="a"), replay_pb2.ReplayRequest(model="affine", id="b")):
            await stream.write(replay_pb2.ReplayStreamRequest(request=message))
        await stream.done_writing()
        assert len([reply async for reply in stream]) == 2
        tensor = pb.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=(1, 4))
        triton = of.inference.ModelStreamInfer(None, metadata=(CALLER,))
        await triton.write(pb.ModelInferRequest(model_name="affine", inputs=[tensor], raw_input_contents=[bytes(16)]))
        await triton.done_writing()
        assert len([reply async for reply in triton]) == 1
        found = await servers(of)
        assert {span.parent for span in found} == {"b7ad6b7169203331"}
        statuses = {(span.name.rpartition("/")[2], span.attributes["rpc.response.status_code"]) for span in found}
        assert statuses == {("ReplayStream", "OK"), ("ReplayStream", "INVALID_ARGUMENT"), ("ModelStreamInfer", "OK")}


async def test_requests_of_one_batch_share_its_span_and_parts_have_one_each() -> None:
    """Twelve rows of at most eight are two batches; a batch links to all of its requests."""
    async with traced(TEXT) as of:
        await of.replay.Replay(request(12))
        (found,) = await servers(of)
        assert len(found.links) == 2
        assert found.attributes["graphcache.parts"] == 2
        assert tree(of, found).count("graphcache.fallback") == 2
        assert {span.id for span in of.collector.named("graphcache.batch")} == set(found.links)


async def test_the_worker_traces_what_it_does_of_its_own_accord() -> None:
    """A capture with its steps, one that is refused, an eviction: each with the decision behind it."""
    async with traced(TEXT, sample="0%") as of:
        await of.node.admin.warm("affine", "", {"batch": 2}, {}, force=True)
        with suppress(Exception):
            await of.node.admin.warm("slow", "", {"batch": 8}, {}, force=True)
        await of.node.admin.evict("affine", "", None, {})
        await of.flush()
        captured, refused = of.collector.named("graphcache.capture")
        (evicted,) = of.collector.named("graphcache.evict")
        assert (captured.attributes["graphcache.result"], captured.attributes["graphcache.bucket"]) == ("ok", "batch=2")
        assert tree(of, captured) == ["graphcache.judge", "graphcache.record", "graphcache.verify"]
        assert refused.attributes["graphcache.result"] == "sync"
        decisions = [{item.key for item in span.message.events[0].attributes} for span in (captured, evicted)]
        assert all({"graphcache.cause", "graphcache.budget_bytes"} <= decision for decision in decisions)
        assert len({captured.trace, refused.trace, evicted.trace}) == 3


@pytest.mark.parametrize("sample", ["0%", "100%", None])
async def test_clients_see_no_difference(sample: str | None) -> None:
    """Values, statuses and metadata, with tracing on, at a rate of zero and off."""
    sets = ["telemetry.otlp=none"] if sample is None else []
    async with traced(TEXT, sets, sample=sample or "1%") as of:
        assert (of.node.tracer is None) is (sample is None)
        reply = of.replay.Replay(request())
        values = np.frombuffer((await reply).outputs[0].data, np.float32)
        want = of.node.worker.registry.get("affine").loaded.module(torch.ones(2, 4)).detach().numpy().reshape(-1)
        np.testing.assert_array_equal(values, want)
        assert not await reply.initial_metadata()
        assert not await reply.trailing_metadata()
        of.node.worker._max_waiting = 0
        refused = of.replay.Replay(request())
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await refused
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert ("grpc-retry-pushback-ms", "100") in list(failed.value.trailing_metadata() or ())  # type: ignore[comparison-overlap]


# -- what is kept


def ended(tracer: Tracer, path: Path | None, seconds: float = 0.001) -> None:
    """One request through a tracer."""
    trace = tracer.begin(REPLAY, None)
    trace.model = "m"
    trace.outcome = None if path is None else Outcome(path, None if path is Path.REPLAY else FallbackReason.NOT_CAPTURED)
    trace.began -= seconds
    tracer.finish(trace)


def test_the_share_that_is_sampled_is_the_one_asked_for() -> None:
    """Of ten thousand replays, about one in fifty."""
    kept = Kept()
    tracer = Tracer(kept, ratio=0.02, keep=frozenset())
    for _ in range(10_000):
        ended(tracer, Path.REPLAY)
    assert 120 < len(kept.traces) < 290
    assert len({trace.context.trace_id for trace in kept.traces}) == len(kept.traces)


def test_a_storm_of_fallbacks_is_no_storm_of_traces() -> None:
    """What goes beyond the allowance is dropped and counted."""
    kept = Kept()
    tracer = Tracer(kept, ratio=0.0, keep=frozenset({Keep.FALLBACK}), per_second=50.0)
    for _ in range(1000):
        ended(tracer, Path.EAGER)
    assert 90 < len(kept.traces) < 200
    assert kept.dropped == 1000 - len(kept.traces)


def test_only_what_is_asked_for_is_kept() -> None:
    """Errors without fallbacks, fallbacks without errors, neither."""
    for keep, want in ((frozenset({Keep.ERROR}), [None]), (frozenset({Keep.FALLBACK}), [Path.EAGER]), (frozenset[Keep](), [])):
        kept = Kept()
        tracer = Tracer(kept, ratio=0.0, keep=keep)
        for path in (None, Path.EAGER, Path.REPLAY):
            ended(tracer, path)
        assert [trace.outcome and trace.outcome.path for trace in kept.traces] == want


def test_a_slow_request_is_one_that_takes_several_times_as_long_as_usual() -> None:
    """Not the first one, about which nothing is known; not jitter of a fast model."""
    kept = Kept()
    tracer = Tracer(kept, ratio=0.0, keep=frozenset({Keep.SLOW}))
    for seconds in (0.02, 0.021, 0.019, 0.2, 0.02):
        ended(tracer, Path.REPLAY, seconds)
    assert [round(trace.seconds, 1) for trace in kept.traces] == [0.2]
    slow = Slow()
    trace = Tracer(kept, ratio=0.0, keep=frozenset()).begin(REPLAY, None)
    trace.outcome = Outcome(Path.REPLAY)
    for seconds in (0.0001, 0.003):
        trace.ended = trace.began + seconds
        assert not slow.is_slow(trace)


def test_an_allowance_fills_with_time() -> None:
    """Two seconds' worth at once, then by and by."""
    allowance = Allowance(10.0, _at=100.0)
    assert sum(allowance.take(200.0) for _ in range(50)) == 20
    assert sum(allowance.take(200.5) for _ in range(50)) == 5


def test_a_collector_without_a_port_is_an_error() -> None:
    """Named with its key."""
    from service.config import load  # noqa: PLC0415

    with pytest.raises(ConfigError, match=r"telemetry\.otlp: must be host:port"):
        load(None, ["telemetry.otlp=collector"], demo=True)
