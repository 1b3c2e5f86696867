"""A worker in this process with its inference port, whose traces go to a real collector."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceStub
from service.pb.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from service.rpc.address import Listen
from service.rpc.server import Servers
from service.serving import Node
from service.telemetry.tracing import Finished, RequestTrace
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

    @property
    def replay(self) -> ReplayServiceAsyncStub:
        """Our own protocol."""
        return ReplayServiceStub(self.channel)

    @property
    def inference(self) -> GRPCInferenceServiceAsyncStub:
        """The Open Inference Protocol."""
        return GRPCInferenceServiceStub(self.channel)

    def flush(self) -> None:
        """Send what has ended so far."""
        assert self.node.exporting is not None
        self.node.exporting.close()


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
                    yield Traced(node, address, channel, collector)
            finally:
                await servers.stop(0)
                if node.exporting is not None:
                    node.exporting.close()
