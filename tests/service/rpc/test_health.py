"""grpc.health.v1 on the inference port and on the probe port."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.errors import ConfigError
from service.rpc.address import Listen
from service.rpc.health import HealthState, ProbeServer
from service.rpc.server import SERVICES
from tests.service.rpc.double import Node, listening

Request = health_pb2.HealthCheckRequest
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """Servers that are ready."""
    async with listening() as node:
        yield node


@pytest.fixture
def state() -> HealthState:
    """As before the start is over."""
    return HealthState(SERVICES)


@pytest.fixture
def probe(state: HealthState) -> Iterator[health_pb2_grpc.HealthStub]:
    """The probe port, through a real client."""
    server = ProbeServer(state, Listen("worker.probe_listen", "127.0.0.1:0"))
    with grpc.insecure_channel(server.start()) as channel:
        yield health_pb2_grpc.HealthStub(channel)
    server.stop()


def test_probe_goes_from_start_to_drain(state: HealthState, probe: health_pb2_grpc.HealthStub) -> None:
    """Live from the first moment, started and ready later; a drain ends readiness for good and nothing else."""

    def now() -> dict[str, int]:
        return {name: probe.Check(Request(service=name)).status for name in ("", *SERVICES, "startup", "liveness")}

    ready = ("", *SERVICES)
    assert now() == dict.fromkeys(ready, NOT_SERVING) | {"startup": NOT_SERVING, "liveness": SERVING}
    state.set_started()
    state.set_ready(True)
    assert now() == dict.fromkeys(ready, SERVING) | {"startup": SERVING, "liveness": SERVING}
    state.drain()
    state.set_ready(True)
    assert now() == dict.fromkeys(ready, NOT_SERVING) | {"startup": SERVING, "liveness": SERVING}
    state.set_alive(False)
    assert probe.Check(Request(service="liveness")).status == NOT_SERVING


def test_unknown_service_is_not_found(probe: health_pb2_grpc.HealthStub) -> None:
    """A misspelt probe fails instead of passing by luck."""
    with pytest.raises(grpc.RpcError) as failed:
        probe.Check(Request(service="liveliness"))
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND


def test_probe_answers_while_watchers_hold_more_calls_than_it_has_threads(state: HealthState, probe: health_pb2_grpc.HealthStub) -> None:
    """A Watch must not take the thread that a Check needs."""
    watches = [probe.Watch(Request()) for _ in range(20)]
    assert [next(watch).status for watch in watches] == [NOT_SERVING] * 20
    assert probe.Check(Request(service="liveness")).status == SERVING
    state.set_ready(True)
    assert [next(watch).status for watch in watches] == [SERVING] * 20
    for watch in watches:
        watch.cancel()


async def test_probe_answers_while_the_event_loop_is_stuck(state: HealthState, probe: health_pb2_grpc.HealthStub) -> None:
    """It has threads of its own. The loop is blocked until the answer is there."""
    answers: list[int] = []
    asker = threading.Thread(target=lambda: answers.append(probe.Check(Request(service="liveness"), timeout=30).status))
    asker.start()
    asker.join()  # blocks this loop
    assert answers == [SERVING]


def test_probe_port_in_use_is_named(state: HealthState) -> None:
    """Key and address, in one line."""
    first = ProbeServer(state, Listen("worker.probe_listen", "127.0.0.1:0"))
    address = first.start()
    try:
        with pytest.raises(ConfigError, match=rf"worker\.probe_listen: can't listen on {address}: it is in use"):
            ProbeServer(state, Listen("worker.probe_listen", address)).start()
    finally:
        first.stop()


async def test_inference_port_answers_checks(node: Node) -> None:
    """The same state as on the probe port."""
    stub = health_pb2_grpc.HealthStub(node.channel)
    assert (await stub.Check(Request(service="inference.GRPCInferenceService"))).status == SERVING
    assert (await stub.Check(Request(service="startup"))).status == NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stub.Check(Request(service="nobody"))
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND


async def test_every_watcher_hears_of_a_drain(node: Node) -> None:
    """Also after another watcher of the same service has gone."""
    stub = health_pb2_grpc.HealthStub(node.channel)
    gone, stays, unknown = stub.Watch(Request()), stub.Watch(Request()), stub.Watch(Request(service="nobody"))
    assert [(await watch.read()).status for watch in (gone, stays, unknown)] == [SERVING, SERVING, UNKNOWN]
    gone.cancel()
    await asyncio.gather(gone.code())
    await asyncio.to_thread(node.health.drain)  # from whatever thread
    assert (await stays.read()).status == NOT_SERVING
    stays.cancel()
    unknown.cancel()
