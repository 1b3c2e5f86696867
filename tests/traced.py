"""A worker in this process with its inference port, whose traces go to a real collector."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
from opentelemetry.trace import SpanContext

from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceStub
from service.pb.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from service.rpc.address import Listen
from service.rpc.server import Servers
from service.serving import Node
from service.telemetry.tracing import Finished, RequestTrace, Tracer
from tests.harness import running
from tests.otlp import Collector, collecting

if TYPE_CHECKING:  # known to the type checker only
    from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceAsyncStub
    from service.pb.inference.grpc_service_pb2_grpc import GRPCInferenceServiceAsyncStub


@dataclass(frozen=True, slots=True)
class Traced:
    """The parts that tests look at."""

    node: Node
    address: str
    channel: grpc.aio.Channel
    collector: Collector
    quiet: asyncio.Event  # no request has begun that has not ended

    @property
    def replay(self) -> ReplayServiceAsyncStub:
        """Our own protocol."""
        return ReplayServiceStub(self.channel)

    @property
    def inference(self) -> GRPCInferenceServiceAsyncStub:
        """The Open Inference Protocol."""
        return GRPCInferenceServiceStub(self.channel)

    async def flush(self) -> None:
        """Wait for the end of what has begun, then send it: a client has its answer a moment before the call has ended for the server."""
        await self.quiet.wait()
        assert self.node.exporting is not None
        await asyncio.to_thread(self.node.exporting.close)


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.traces: list[RequestTrace] = []
        self.dropped = 0

    def put(self, finished: Finished) -> None:
        """See Sink."""
        assert isinstance(finished, RequestTrace)
        self.traces.append(finished)

    def drop(self, count: int = 1) -> None:
        """See Sink."""
        self.dropped += count


@asynccontextmanager
async def traced(
    text: str, sets: Sequence[str] = (), *, sample: str = "100%", keep: str = "[fallback, error, slow]"
) -> AsyncIterator[Traced]:
    """No graph is captured by itself."""
    with collecting() as collector:
        telemetry = [f"telemetry.otlp={collector.address}", f"telemetry.sample={sample}", f"telemetry.keep={keep}"]
        async with running("cpu", text, ["cache.capture.background=false", *telemetry, *sets]) as node:
            listen = Listen("worker.listen", "127.0.0.1:0")
            servers = Servers(node.worker, node.admin, node.observer, node.health, listen=listen, tracer=node.tracer)
            address, _ = await servers.start()
            try:
                async with grpc.aio.insecure_channel(address) as channel:
                    yield Traced(node, address, channel, collector, _watched(node.tracer))
            finally:
                await servers.stop(0)
                if node.exporting is not None:
                    node.exporting.close()


def _watched(tracer: Tracer | None) -> asyncio.Event:
    quiet = asyncio.Event()
    quiet.set()
    if tracer is None:
        return quiet
    under_way: set[RequestTrace] = set()
    begin, finish = tracer.begin, tracer.finish

    def begun(method: str, parent: SpanContext | None) -> RequestTrace:
        trace = begin(method, parent)
        under_way.add(trace)
        quiet.clear()
        return trace

    def finished(trace: RequestTrace) -> None:
        finish(trace)
        under_way.discard(trace)
        if not under_way:
            quiet.set()

    tracer.begin, tracer.finish = begun, finished  # type: ignore[method-assign]
    return quiet
