"""A worker that echoes, for what the wire does and no model is needed for. It checks requests by a real spec."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc

from cachepolicy.buckets import Bucket
from cachepolicy.reasons import FallbackReason
from service.choices import Above, Rows
from service.errors import NotSupported, UnknownModel
from service.messages import (
    BudgetChange,
    Explanation,
    GraphInfo,
    GraphMode,
    InferReply,
    InferRequest,
    ModelState,
    ModelStats,
    ModelStatus,
    ModeState,
    Outcome,
    Parameter,
    Path,
    Plan,
    PlanAlternative,
    PlannedGraph,
)
from service.models.spec import AxisSpec, InputSpec, ModelSpec, OutputSpec, Shape
from service.pb.graphcache.v1.admin_pb2_grpc import AdminServiceStub
from service.pb.graphcache.v1.replay_pb2 import ReplayStreamRequest, ReplayStreamResponse
from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceStub
from service.pb.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from service.rpc.address import Listen
from service.rpc.health import HealthState
from service.rpc.server import SERVICES, Limits, Servers
from service.snapshot import DeviceReading, Load, ModelView, ReasonCount, SizeCount, Snapshot, VariantMode
from service.telemetry.journal import Journal
from service.tensors import Datatype

if TYPE_CHECKING:  # known to the type checker only
    from service.pb.graphcache.v1.admin_pb2_grpc import AdminServiceAsyncStub
    from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceAsyncStub
    from service.pb.inference.grpc_service_pb2_grpc import GRPCInferenceServiceAsyncStub

SPEC = ModelSpec(
    name="echo",
    version="1",
    inputs=(
        InputSpec("tokens", Datatype.INT64, ("batch", "seq"), range=(0, 29999)),
        InputSpec("scale", Datatype.FP32, ("batch", 4)),
    ),
    outputs=(OutputSpec("tokens", Datatype.INT64, ("batch", "seq")), OutputSpec("scale", Datatype.FP32, ("batch", 4))),
    axes=(AxisSpec("batch", 8, (1, 2, 4, 8), Above.SPLIT), AxisSpec("seq", 16, (8, 16))),
    rows=Rows.INDEPENDENT,
    variants=(("adapter", ("base", "legal")),),
)
LIMITS = Limits()
MODE = ModeState(GraphMode.AUTO, "configuration", 1000.0)
OUTCOME = Outcome(
    Path.EAGER,
    FallbackReason.REFUSED,
    detail="sync: aten._local_scalar_dense",
    bucket=Bucket.of(batch=4, seq=8),
    padding_ratio=0.5,
    batch_rows=3,
    parts=2,
    queue_s=0.25,
    execute_s=0.5,
    key="0123456789abcdef",
    variant=(("adapter", "legal"),),
    mode=MODE,
)
GRAPH = GraphInfo(
    "echo", "1", (("adapter", "base"),), Bucket.of(batch=4, seq=8), "serving", key="abc", hits=7, saved_s=1.5, bytes=4096, last_used_s=2.0
)


class Echo:
    """Gives its inputs back. Set `error` to have it raise, `gate` to have it wait; `seen` has every request it was asked."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.seen: list[InferRequest] = []
        self.running = 0
        self.cancelled = 0
        self._changed = asyncio.Event()

    async def until(self, running: int) -> None:
        """Wait until exactly so many requests are inside."""
        while self.running != running:
            self._changed.clear()
            await self._changed.wait()

    async def infer(self, request: InferRequest) -> InferReply:
        """Echo."""
        self.seen.append(request)
        spec = self.spec(request.model, request.version)
        spec.check(request.inputs)
        if self.error:
            raise self.error
        self.running += 1
        self._changed.set()
        try:
            if self.gate:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
            self._changed.set()
        return InferReply(spec.name, spec.version, dict(request.inputs), OUTCOME)

    def models(self) -> list[ModelStatus]:
        """One that is up, one that isn't."""
        return [
            ModelStatus("echo", "1", ModelState.READY, spec=SPEC),
            ModelStatus("echo", "2", ModelState.LOADING),
            ModelStatus("broken", "1", ModelState.UNAVAILABLE, "no such file"),
        ]

    def spec(self, model: str, version: str = "") -> ModelSpec:
        """The one spec."""
        if model != "echo" or version not in ("", "1"):
            raise UnknownModel(f"no model {model!r} with version {version!r}")
        return SPEC

    def statistics(self, model: str = "", version: str = "") -> list[ModelStats]:
        """Some figures."""
        return [ModelStats("echo", "1", 5, 30, 10, 12, 1200, 1, 10, 300, 20, 500, 40, ((4, 7, 700), (2, 3, 300)))]


SNAPSHOT = Snapshot(
    worker="w",
    program="0.1",
    device="cpu",
    at=1000.0,
    uptime_s=5.0,
    ready=True,
    load=Load(3, 1, 0.25, 0.5, {"replay": 0.125, "eager": 2.0}),
    budget=1 << 30,
    used=1 << 20,
    reusable=7,
    memory=DeviceReading(10, 20, 0.5, {"sm": 1e9}),
    models=[
        ModelView("echo", ["1"], {"replay": 9, "eager": 1}, 2.5, 0.25, [ReasonCount(FallbackReason.EVICTED, 1, 0.5, "d", "h")], "all eager")
    ],
    modes=[VariantMode("echo", (("adapter", "base"),), MODE)],
    graphs=[GRAPH],
    sizes=[SizeCount("echo", (), Bucket.of(batch=3, seq=7), 12, Bucket.of(batch=4, seq=8))],
)


class Observed:
    """A snapshot that stays, and a real journal."""

    def __init__(self) -> None:
        self.journal = Journal()

    def snapshot(self) -> Snapshot:
        """Always the same."""
        return SNAPSHOT


@dataclass
class Recorder:
    """Operations that note what they are asked."""

    asked: list[tuple[object, ...]] = field(default_factory=list)
    error: Exception | None = None

    def _note(self, *call: object) -> None:
        self.asked.append(call)
        if self.error:
            raise self.error

    def graphs(self, model: str = "") -> list[GraphInfo]:
        """One graph."""
        self._note("graphs", model)
        return [GRAPH]

    def explain(self, model: str, version: str, shape: Shape, parameters: Mapping[str, Parameter]) -> Explanation:
        """A refusal."""
        self._note("explain", model, version, shape, parameters)
        reason = FallbackReason.REFUSED
        return Explanation(model, "1", Path.EAGER, reason, "rng", Bucket.of(batch=4), 0.5, None, reason.hint, MODE)

    async def warm(self, model: str, version: str, shape: Shape, parameters: Mapping[str, Parameter], force: bool) -> GraphInfo:
        """The graph."""
        self._note("warm", model, version, shape, parameters, force)
        return GRAPH

    async def evict(self, model: str, version: str, shape: Shape | None, parameters: Mapping[str, Parameter]) -> int:
        """Three."""
        self._note("evict", model, version, shape, parameters)
        return 3

    def pin(self, model: str, version: str, shape: Shape, parameters: Mapping[str, Parameter], pinned: bool) -> GraphInfo:
        """The graph."""
        self._note("pin", model, version, shape, parameters, pinned)
        return GRAPH

    def set_mode(self, model: str, version: str, parameters: Mapping[str, Parameter], mode: str, for_s: float | None) -> ModeState:
        """Knows one mode."""
        self._note("set_mode", model, version, parameters, mode, for_s)
        if mode != "none":
            raise NotSupported(f"mode {mode!r} is not built yet")
        return ModeState(GraphMode.NONE, "rpc", 2000.0, None if for_s is None else 2000.0 + for_s)

    async def set_budget(self, budget: int) -> BudgetChange:
        """As asked."""
        self._note("set_budget", budget)
        return BudgetChange(budget, 17, freed=5, reusable=3)

    def plan(
        self, model: str, version: str, parameters: Mapping[str, Parameter], budget: int | None, graphs: int, session_bytes: int
    ) -> Plan:
        """One graph."""
        self._note("plan", model, version, parameters, budget, graphs, session_bytes)
        bucket = Bucket.of(batch=4)
        return Plan(
            model,
            "1",
            (("adapter", "legal"),),
            10,
            5.0,
            [PlannedGraph(bucket, 2.0, 0.5, 1000, 0.01)],
            {"batch": [4]},
            [PlanAlternative("best", 1, 0.5, 0.25, 1000)],
            0.125,
            None if not session_bytes else 1000 / session_bytes,
            [(Bucket.of(batch=3), 10)],
        )

    async def load(self, text: str) -> ModelStatus:
        """Up at once."""
        self._note("load", text)
        return ModelStatus("new", "1", ModelState.READY)

    async def unload(self, model: str, version: str = "") -> None:
        """Down at once."""
        self._note("unload", model, version)

    async def reload(self, model: str, version: str = "", weights: str = "") -> ModelStatus:
        """Up at once."""
        self._note("reload", model, version, weights)
        return ModelStatus(model, "1", ModelState.READY)


@dataclass
class Node:
    """A server on real sockets with its worker, and stubs that talk to it."""

    worker: Echo
    operations: Recorder
    observed: Observed
    health: HealthState
    servers: Servers
    address: str
    channel: grpc.aio.Channel
    admin_channel: grpc.aio.Channel

    @property
    def inference(self) -> GRPCInferenceServiceAsyncStub:
        """The Open Inference Protocol."""
        return GRPCInferenceServiceStub(self.channel)

    @property
    def replay(self) -> ReplayServiceAsyncStub:
        """Our own."""
        return ReplayServiceStub(self.channel)

    @property
    def admin(self) -> AdminServiceAsyncStub:
        """On its own port."""
        return AdminServiceStub(self.admin_channel)


@asynccontextmanager
async def listening(limits: Limits = LIMITS, *, address: str = "127.0.0.1:0") -> AsyncIterator[Node]:
    """Servers around an Echo, on free ports."""
    worker, operations, observed, health = Echo(), Recorder(), Observed(), HealthState(SERVICES)
    servers = Servers(
        worker,
        operations,
        observed,
        health,
        listen=Listen("worker.listen", address),
        admin_listen=Listen("worker.admin_listen", "127.0.0.1:0"),
        limits=limits,
    )
    bound, admin_bound = await servers.start()
    health.set_ready(True)
    async with grpc.aio.insecure_channel(bound) as channel, grpc.aio.insecure_channel(admin_bound) as admin_channel:
        try:
            yield Node(worker, operations, observed, health, servers, bound, channel, admin_channel)
        finally:
            await servers.stop(0)


async def read(stream: grpc.aio.StreamStreamCall[ReplayStreamRequest, ReplayStreamResponse]) -> ReplayStreamResponse:
    """The next reply of a stream that has one."""
    reply = await stream.read()
    assert isinstance(reply, ReplayStreamResponse)
    return reply
