"""Wires a worker together and runs it until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING

import torch
import uvloop

from cachepolicy.cache import GraphCache
from cachepolicy.capture import Patience, PaybackAdmission
from cachepolicy.costs import CostTable, Guesses
from cachepolicy.reasons import RefusalReason
from service import garbage
from service.admin import Admin
from service.backends.artefacts import keep_compiled
from service.backends.base import Backend
from service.backends.environment import Settings
from service.backends.opening import open_backend
from service.capturer import Capturer
from service.choices import ArenaScope, Compile
from service.config import Config, ModelConfig, TelemetryConfig, WorkerConfig, parse_model
from service.errors import CaptureRefused, ConfigError, DeviceLost
from service.execution import Executor
from service.hostlock import HostLock
from service.lane import BackgroundLane, LaneThread
from service.memory import Ledger
from service.models.loaded import LoadedModel
from service.models.loading import load_model
from service.observer import Observer
from service.prewarm import Prewarm, Progress
from service.profiling import Profiling
from service.recorder import Recorder
from service.registry import Registry, ServedModel, Surroundings
from service.routing import Router
from service.rpc.address import Listen
from service.rpc.health import OVERALL, HealthState, ProbeServer
from service.rpc.server import SERVICES, Limits, Servers
from service.stores.opening import open_store
from service.telemetry import logs
from service.telemetry.alarm import GraphsOff
from service.telemetry.device import DeviceMonitor
from service.telemetry.endings import Endings
from service.telemetry.http import MetricsServer, View
from service.telemetry.journal import Journal
from service.telemetry.metrics import Metrics
from service.telemetry.pulse import Pulse
from service.telemetry.tracing import Tracer
from service.verification import Accepted, Audit, Mismatch, Proof, Stopwatch
from service.worker import Worker

if TYPE_CHECKING:
    from service.telemetry.export import Exporting

log = logging.getLogger(__name__)

EXIT_DEVICE_LOST = 77

# Before anything was captured: a plain capture takes a few milliseconds and a few eager runs (docs/decisions/0025).
GUESSES = Guesses(capture_s=0.004, capture_per_eager=5.0)
_HOLDING_S = 0.3  # before the port closes: by then each client that is still sending has a call held in the worker
_CLOSING_S = 0.05  # until gRPC takes no more calls
RETRY_S = 60.0  # a refused graph is tried again after so long, then after twice as long, and so on


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - whoever started the worker waits for this line


def serve(config: Config, announce: Callable[[str], None] = _print, watch: Callable[[Progress], None] = lambda _: None) -> int:
    """Run a worker in the foreground; returns the exit code. Raises ConfigError where the configuration can't be served.

    `announce` gets the line with the addresses, `watch` the progress of what is captured before traffic.
    """
    logs.configure(config.telemetry.logs)
    return uvloop.run(_serve(config, announce, watch))


async def _serve(config: Config, announce: Callable[[str], None], watch: Callable[[Progress], None]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    _on_signals(loop, stop)
    lost = False

    def device_lost(_: DeviceLost) -> None:
        nonlocal lost
        lost = True
        loop.call_soon_threadsafe(stop.set)

    node = assemble(config)
    node.worker.on_device_lost = device_lost
    node.prewarm.watch = watch
    try:
        async with _servers(config.worker, node) as addresses:
            await node.profiling.read()  # while the loop is quiet
            for model in config.models:
                await node.admin.load_config(model)
            if not node.profiling.informed:
                await node.profiling.read()
            if not config.models:
                log.warning("no models are configured: not ready until one is loaded through the admin port")
            announce(f"listening {addresses}")
            node.capturer.open()
            lasting = (_prewarm(config, node), node.worker.audit_when_idle(), node.pulse.beat(), node.profiling.run())
            background = {asyncio.create_task(one) for one in lasting}

            def loaded(served: ServedModel) -> None:
                background.add(task := asyncio.create_task(node.prewarm.one(served)))
                task.add_done_callback(background.discard)

            node.admin.on_loaded = loaded
            await stop.wait()
            node.admin.on_loaded = lambda _: None
            for task in list(background):
                task.cancel()
            await _leave(node, 0.0 if lost else config.worker.drain)
    finally:
        await node.profiling.close()
        if node.exporting is not None:
            await asyncio.to_thread(node.exporting.close)
        if not lost:  # what a lost device holds can't be given back
            await asyncio.to_thread(node.close)
    return EXIT_DEVICE_LOST if lost else 0


@asynccontextmanager
async def _servers(config: WorkerConfig, node: Node) -> AsyncIterator[str]:
    """Every port of the worker; gives the line that says where they are. Raises ConfigError where an address is taken."""
    observer = node.observer
    limits = Limits(message=config.limits.message, streams=config.limits.streams)
    servers = Servers(
        node.worker,
        node.admin,
        observer,
        node.health,
        listen=Listen("worker.listen", config.listen),
        admin_listen=Listen("worker.admin_listen", config.admin_listen) if config.admin_listen else None,
        limits=limits,
        tracer=node.tracer,
    )
    probe = ProbeServer(node.health, Listen("worker.probe_listen", config.probe_listen)) if config.probe_listen else None
    metrics = MetricsServer(
        View(
            node.worker.metrics.registry,
            observer.journal,
            observer.snapshot,
            lambda: bool(node.health.serving(OVERALL)),
            lambda: observer.alarms,
        )
    )
    try:
        inference, admin = await servers.start()
        addresses = (
            f"inference={inference} admin={admin} metrics={metrics.start(config.metrics_listen)} probe={probe.start() if probe else ''}"
        )
        yield addresses
    finally:
        stopping = asyncio.create_task(servers.stop(config.drain))
        await asyncio.sleep(_CLOSING_S)
        node.worker.release()
        await stopping
        if probe:
            probe.stop()
        metrics.stop()


async def _leave(node: Node, drain_s: float) -> None:
    """Not ready for good; what is in flight is answered, within the time to drain."""
    node.health.drain()
    try:
        await asyncio.wait_for(node.worker.drain(), drain_s)
    except TimeoutError:
        log.warning("left with requests unanswered: the drain time of %s s has passed", drain_s)
    node.worker.hold()
    await asyncio.sleep(_HOLDING_S)


def _on_signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """The first SIGTERM or SIGINT drains, the second ends at once."""

    def told() -> None:
        if stop.is_set():
            log.warning("told to stop a second time: leaving at once, with requests unanswered")
            os._exit(1)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)


@dataclass(slots=True, eq=False)
class Node:
    """The parts of one worker process, without its servers."""

    worker: Worker
    admin: Admin
    capturer: Capturer
    lane: LaneThread
    backend: Backend
    health: HealthState
    observer: Observer
    pulse: Pulse
    profiling: Profiling
    prewarm: Prewarm
    tracer: Tracer | None
    exporting: Exporting | None

    def close(self) -> None:
        """Destroy all graphs and let go of the device."""
        self.capturer.close()
        self.lane.close()
        self.backend.close()


def assemble(config: Config) -> Node:
    """Make the parts and put them together. To be called on the event loop that will serve."""
    backend = open_backend(config.worker.device, max_nodes=config.cache.capture.max_nodes)
    lane = LaneThread(backend.lane, "lane")
    beside = BackgroundLane(lane)
    registry, costs, metrics, health = Registry(), CostTable(GUESSES), Metrics(), HealthState(SERVICES)
    journal, alarm, monitor = Journal(), GraphsOff(), DeviceMonitor(_uuid(backend.device))
    costs.charge_captures(0.0)  # nothing runs yet
    name, nonce = config.worker.name or socket.gethostname(), token_hex(3)
    exporting = _exporting(config.telemetry, config.worker.name or f"{name}-{nonce}", metrics)
    tracer = Tracer(exporting, ratio=config.telemetry.sample, keep=config.telemetry.keep) if exporting else None
    cache = GraphCache(_budget(config, backend))

    def load(model: ModelConfig, generation: int) -> LoadedModel:
        worker_config = config.worker
        if model.compile is Compile.INDUCTOR:
            keep_compiled(config.state_dir / "compiled", backend.environment().fingerprint())
        return load_model(
            model,
            device=torch.device(backend.device),
            allowed=worker_config.allowed_factories,
            generation=generation,
            base_dir=config.base_dir,
            index=next((number for number, listed in enumerate(config.models) if listed is model), None),
        )

    accepted = Accepted()
    proof = Proof(backend, lambda model: model.fresh(), accepted)

    def idle() -> bool:
        return not worker.waiting

    def hurried(slack_s: float) -> bool:
        return worker.hurried(slack_s)

    capture, ledger = config.cache.capture, Ledger(backend, cache)
    settings = Settings(torch.device(backend.device))
    recorder = Recorder(
        backend,
        beside,
        cache,
        ledger,
        costs,
        proof,
        Stopwatch(backend, accepted, idle),
        HostLock(config.state_dir / "capture.lock", between=beside.make_way, unlocked=metrics.capture_unlocked),
        hurried,
        metrics,
        journal,
        tracer,
        own_pools=config.cache.arena is ArenaScope.GRAPH,
        min_gain=capture.min_gain,
        drift=settings.drift,
    )
    capturer = Capturer(
        backend.capturer,
        cache,
        recorder,
        ledger,
        PaybackAdmission(costs, Patience(min_gain=capture.min_gain, refusal_s=RETRY_S)),
        costs,
        metrics,
        idle,
        beside,
        background=capture.background,
        shadow=capture.shadow,
    )

    def retire(mismatch: Mismatch) -> None:
        name = mismatch.model.spec.name
        log.error("a replay of %s gave a wrong answer, its graph is retired: %s", mismatch.entry.key, mismatch.detail)
        metrics.audit_mismatch(name)
        capturer.discard(mismatch.entry, CaptureRefused(RefusalReason.MISMATCH, mismatch.detail))

    audit = Audit(backend, lane, proof.standard, retire, every=round(1 / config.cache.audit) if config.cache.audit else 0)
    router = Router(cache, capturer, settings.drift)
    endings = Endings(metrics, alarm, journal)
    worker = Worker(
        config.worker.name or f"{name}-{nonce}",
        lane,
        registry,
        Executor(backend, router, cache, capturer, costs, metrics, audit),
        endings,
        accepted,
        audit,
        max_waiting=config.worker.limits.waiting,
        max_waiting_bytes=config.worker.limits.waiting_bytes,
        default_deadline_s=config.worker.default_deadline,
    )
    capturer.on_device_lost(worker.lose_device)

    def surroundings() -> Surroundings:  # a model's own code may have changed settings on the way
        return Surroundings(backend.environment().fingerprint(), settings.now())

    admin = Admin(
        registry,
        router,
        cache,
        capturer,
        costs,
        lane,
        surroundings,
        load,
        parse_model,
        metrics.padding_ratio,
        config.worker.limits.message,
        capture.min_gain,
    )
    admin.on_unloaded = endings.forget
    pulse = Pulse(lambda: lane.busy_s, alarm, metrics.loop_lag, health.set_graphs)
    observer = Observer(worker, admin, cache, costs, capturer, pulse, alarm, journal, monitor, backend.device)
    metrics.registry.watch(observer.readings)
    store = open_store(config.profile_store, config.state_dir, lambda: metrics.profile_store_error("record"))
    profiling = Profiling(store, recorder.traffic, cache, costs, backend.environment().device, metrics, f"{name}-{nonce}")
    plans = capture.background and not capture.shadow
    prewarm = Prewarm(config.cache.prewarm, admin, capturer, registry, costs, profiling, metrics, tracer, capture.min_gain, plans=plans)
    return Node(worker, admin, capturer, lane, backend, health, observer, pulse, profiling, prewarm, tracer, exporting)


def _exporting(config: TelemetryConfig, worker: str, metrics: Metrics) -> Exporting | None:
    if config.otlp is None:
        return None
    from service.telemetry.export import open_exporting  # noqa: PLC0415 - takes a fifth of a second, and most workers trace nothing

    return open_exporting(config.otlp, worker, metrics.telemetry_dropped)


def _uuid(device: str) -> str:
    """Names a CUDA device to the driver; "" for any other."""
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", "")) if device.startswith("cuda") else ""


def _budget(config: Config, backend: Backend) -> int:
    total = backend.memory().total
    budget = config.cache.budget.resolve(total)
    if budget > total:
        raise ConfigError(f"cache.budget: {budget} bytes are more than the device's memory of {total}")
    return budget


async def _prewarm(config: Config, node: Node) -> None:
    """Ready once the prewarm is over, or at once where that is not waited for."""

    def ready() -> None:
        garbage.keep()
        node.worker.prewarmed()
        node.health.set_ready(node.worker.ready)
        node.health.set_started()

    if not config.cache.prewarm.wait:
        ready()
    await node.prewarm.run()
    ready()
    await node.prewarm.usual()
