"""The inference port and the admin port."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from service.pb.graphcache.v1.admin_pb2_grpc import add_AdminServiceServicer_to_server
from service.pb.graphcache.v1.replay_pb2_grpc import add_ReplayServiceServicer_to_server
from service.pb.inference.grpc_service_pb2_grpc import add_GRPCInferenceServiceServicer_to_server
from service.rpc import admin, health, inference, replay
from service.rpc.address import Listen, bind
from service.rpc.observing import Watching
from service.rpc.ports import Inference, Observations, Operations
from service.rpc.streams import Streams
from service.telemetry.tracing import Tracer

SERVICES = (inference.SERVICE, replay.SERVICE, admin.SERVICE)  # what health checks may ask for by name


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a connection: bytes of one request, and calls at a time. How large a reply may be is up to the client."""

    message: int = 64 << 20
    streams: int = 100


class Servers:
    """Answers on the inference port, and on the admin port where it has an address."""

    def __init__(
        self,
        worker: Inference,
        operations: Operations,
        observations: Observations,
        state: health.HealthState,
        *,
        listen: Listen,
        admin_listen: Listen | None = None,
        limits: Limits = Limits(),
        tracer: Tracer | None = None,
    ) -> None:
        self._streams = Streams(tracer)
        self._watching = Watching(observations)
        self._inference = _server(limits)
        add_GRPCInferenceServiceServicer_to_server(inference.InferenceServicer(worker, state, self._streams), self._inference)
        add_ReplayServiceServicer_to_server(replay.ReplayServicer(worker, self._streams), self._inference)
        health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(state), self._inference)
        reflection.enable_server_reflection((inference.SERVICE, replay.SERVICE, health.SERVICE, reflection.SERVICE_NAME), self._inference)
        self._listen = listen
        self._admin = _server(limits) if admin_listen else None
        self._admin_listen = admin_listen
        if self._admin:
            add_AdminServiceServicer_to_server(admin.AdminServicer(operations, self._watching), self._admin)
            reflection.enable_server_reflection((admin.SERVICE, reflection.SERVICE_NAME), self._admin)

    async def start(self) -> tuple[str, str]:
        """Listen; returns the inference and the admin address ("" where that is off). Raises ConfigError where an address is taken."""
        address = bind(self._inference.add_insecure_port, self._listen)
        admin_address = ""
        if self._admin and self._admin_listen:
            admin_address = bind(self._admin.add_insecure_port, self._admin_listen)
            await self._admin.start()
        await self._inference.start()
        return address, admin_address

    async def stop(self, grace_s: float) -> None:
        """Take no more calls (they get UNAVAILABLE), finish those in flight, and cancel what is left after the grace."""
        self._streams.close()
        self._watching.close()
        await asyncio.gather(*(server.stop(grace_s) for server in (self._inference, self._admin) if server))


def _server(limits: Limits) -> grpc.aio.Server:
    return grpc.aio.server(
        options=(
            ("grpc.so_reuseport", 0),  # else a second worker would share the port in silence
            ("grpc.max_receive_message_length", limits.message),
            ("grpc.max_send_message_length", -1),  # else a reply a few bytes larger than its request would end a whole stream
            ("grpc.max_concurrent_streams", limits.streams),
            # Else calls that are answered but not yet freed count too, and a client that keeps to the limit has streams refused.
            ("grpc.http.overload_protection", 0),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # routers ping idle connections; who pings faster is cut off
        ),
    )
