"""grpc.health.v1: one state for the process, answered on the inference port and, by a thread of its own, on the probe port."""
# ruff: noqa: N802 (gRPC chooses the names of methods)

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from service.rpc.address import Listen, bind
from service.rpc.status import Context

SERVICE = health.SERVICE_NAME
OVERALL = ""
STARTUP = "startup"  # serving once the start is over, whatever happens later
LIVENESS = "liveness"  # serving until the process had better be restarted
GRAPHS = "graphs"  # not serving while graphs of a model are effectively off; nothing is to be restarted for it

_Serving = health_pb2.HealthCheckResponse.ServingStatus


class HealthState:
    """What health checks see. Every method may be called from any thread.

    `ready` stands for "" and for each service; `startup`, `liveness` and `graphs` are names of their own.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._lock = threading.Lock()
        self._ready = (OVERALL, *services)
        self._serving = dict.fromkeys(self._ready, False) | {STARTUP: False, LIVENESS: True, GRAPHS: True}
        self._draining = False
        self._watchers: set[Callable[[], object]] = set()

    def set_ready(self, ready: bool) -> None:
        """Whether requests may be sent; stays false once draining."""
        with self._lock:
            self._set(self._ready, ready and not self._draining)

    def set_started(self) -> None:
        """The start is over: models are up and the prewarm bound has passed."""
        with self._lock:
            self._set((STARTUP,), True)

    def set_alive(self, alive: bool) -> None:
        """False asks for a restart of the process."""
        with self._lock:
            self._set((LIVENESS,), alive)

    def set_graphs(self, off: bool) -> None:
        """Whether graphs of a model are effectively off."""
        with self._lock:
            self._set((GRAPHS,), not off)

    def drain(self) -> None:
        """Not ready for good; what is in flight goes on."""
        with self._lock:
            self._draining = True
            self._set(self._ready, False)

    def serving(self, service: str) -> bool | None:
        """Whether a service serves; None where the name is unknown."""
        return self._serving.get(service)

    def all(self) -> dict[str, bool]:
        """Every name and whether it serves."""
        return dict(self._serving)

    def watch(self, changed: Callable[[], object]) -> Callable[[], None]:
        """Have `changed` called, in whatever thread, after every change; returns what ends that. `changed` must be quick."""
        with self._lock:
            self._watchers.add(changed)

        def end() -> None:
            with self._lock:
                self._watchers.discard(changed)

        return end

    def _set(self, names: Iterable[str], serving: bool) -> None:
        wanted = dict.fromkeys(names, serving)
        if wanted.items() <= self._serving.items():
            return
        self._serving.update(wanted)
        for changed in self._watchers:
            changed()


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc] # comes without types
    """Health on an event loop."""

    def __init__(self, state: HealthState) -> None:
        self._state = state

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """The present state; NOT_FOUND for an unknown name."""
        serving = self._state.serving(request.service)
        if serving is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {request.service!r}")
        return health_pb2.HealthCheckResponse(status=_status(serving))

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        """The present state, and then every change of it."""
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        end = self._state.watch(lambda: loop.call_soon_threadsafe(changed.set))
        try:
            last = None
            while True:
                response = health_pb2.HealthCheckResponse(status=_status(self._state.serving(request.service)))
                if response != last:
                    await context.write(response)
                    last = response
                await changed.wait()
                changed.clear()
        finally:
            end()


class ProbeServer:
    """Health alone, by threads of its own: it answers whatever the event loop is busy with."""

    def __init__(self, state: HealthState, listen: Listen) -> None:
        self._state = state
        self._servicer = health.HealthServicer()  # takes no thread for a Watch
        self._server = grpc.server(ThreadPoolExecutor(2, thread_name_prefix="probe"), options=(("grpc.so_reuseport", 0),))
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, self._server)
        self._listen = listen
        self._end: Callable[[], None] = lambda: None

    def start(self) -> str:
        """Listen; returns the address. Raises ConfigError where that fails."""
        address = bind(self._server.add_insecure_port, self._listen)
        self._end = self._state.watch(self._mirror)
        self._mirror()
        self._server.start()
        return address

    def stop(self) -> None:
        """Stop at once."""
        self._end()
        self._server.stop(None).wait()

    def _mirror(self) -> None:
        for service, serving in self._state.all().items():
            self._servicer.set(service, _status(serving))


def _status(serving: bool | None) -> int:
    if serving is None:
        return _Serving.SERVICE_UNKNOWN  # type: ignore[no-any-return]
    return _Serving.SERVING if serving else _Serving.NOT_SERVING  # type: ignore[no-any-return]
