"""AdminService over the worker's operations."""
# ruff: noqa: N802 (gRPC chooses the names of methods)

from __future__ import annotations

from collections.abc import Mapping

from service.errors import BadInput
from service.messages import Explanation, ModelState, ModelStatus, Plan
from service.pb.graphcache.v1 import admin_pb2 as pb
from service.pb.graphcache.v1.admin_pb2_grpc import AdminServiceServicer
from service.rpc.codec import parameters_of, wire_enum
from service.rpc.observing import Watching, graph
from service.rpc.ports import Operations
from service.rpc.replay import PATHS, fallback_of, mode_state, refusal_of, sizes_of
from service.rpc.status import Context, answers_errors

SERVICE = pb.DESCRIPTOR.services_by_name["AdminService"].full_name

MODEL_STATES: dict[ModelState, pb.ModelState] = wire_enum(ModelState, pb.ModelState, "MODEL_STATE")


class AdminServicer(AdminServiceServicer):
    """Thin: each call is one operation between two conversions."""

    def __init__(self, operations: Operations, watching: Watching) -> None:
        self._operations = operations
        self._watching = watching

    @answers_errors
    async def ListGraphs(self, request: pb.ListGraphsRequest, context: Context) -> pb.ListGraphsResponse:
        """The graphs of a model or of all models."""
        return pb.ListGraphsResponse(graphs=[graph(info) for info in self._operations.graphs(request.model)])

    @answers_errors
    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainResponse:
        """What would happen to a request of this shape now."""
        parameters = parameters_of(request.parameters)
        return _explanation(self._operations.explain(request.model, request.version, _shape(request.shape), parameters))

    @answers_errors
    async def Warm(self, request: pb.WarmRequest, context: Context) -> pb.WarmResponse:
        """Capture a bucket and wait for it."""
        parameters = parameters_of(request.parameters)
        info = await self._operations.warm(request.model, request.version, _shape(request.shape), parameters, request.force)
        return pb.WarmResponse(graph=graph(info))

    @answers_errors
    async def Evict(self, request: pb.EvictRequest, context: Context) -> pb.EvictResponse:
        """Drop a bucket's graph, or all of a variant."""
        parameters = parameters_of(request.parameters)
        evicted = await self._operations.evict(request.model, request.version, _shape(request.shape) or None, parameters)
        return pb.EvictResponse(evicted=evicted)

    @answers_errors
    async def Pin(self, request: pb.PinRequest, context: Context) -> pb.PinResponse:
        """Protect a graph from eviction, or stop doing so."""
        parameters = parameters_of(request.parameters)
        info = self._operations.pin(request.model, request.version, _shape(request.shape), parameters, request.pinned)
        return pb.PinResponse(graph=graph(info))

    @answers_errors
    async def Plan(self, request: pb.PlanRequest, context: Context) -> pb.PlanResponse:
        """The best buckets for the traffic seen so far."""
        budget = request.budget_bytes if request.HasField("budget_bytes") else None
        parameters = parameters_of(request.parameters)
        return _plan(self._operations.plan(request.model, request.version, parameters, budget, request.graphs, request.session_bytes))

    @answers_errors
    async def LoadModel(self, request: pb.LoadModelRequest, context: Context) -> pb.LoadModelResponse:
        """Put a model up."""
        return pb.LoadModelResponse(model=_model(await self._operations.load(request.config_yaml)))

    @answers_errors
    async def UnloadModel(self, request: pb.UnloadModelRequest, context: Context) -> pb.UnloadModelResponse:
        """Take a model down."""
        await self._operations.unload(request.model, request.version)
        return pb.UnloadModelResponse()

    @answers_errors
    async def ReloadModel(self, request: pb.ReloadModelRequest, context: Context) -> pb.ReloadModelResponse:
        """Replace a model's weights."""
        status = await self._operations.reload(request.model, request.version, request.weights_path)
        return pb.ReloadModelResponse(model=_model(status))

    @answers_errors
    async def SetGraphMode(self, request: pb.SetGraphModeRequest, context: Context) -> pb.SetGraphModeResponse:
        """Switch graphs for a model or some of its variants."""
        for_s = request.for_s if request.HasField("for_s") else None
        parameters = parameters_of(request.parameters)
        state = self._operations.set_mode(request.model, request.version, parameters, request.mode, for_s)
        return pb.SetGraphModeResponse(mode=mode_state(state))

    @answers_errors
    async def SetBudget(self, request: pb.SetBudgetRequest, context: Context) -> pb.SetBudgetResponse:
        """Resize the cache."""
        change = await self._operations.set_budget(request.bytes)
        return pb.SetBudgetResponse(
            budget_bytes=change.budget, used_bytes=change.used, freed_bytes=change.freed, reusable_bytes=change.reusable
        )

    @answers_errors
    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """The worker at this moment."""
        return await self._watching.status()

    @answers_errors
    async def FindDecisions(self, request: pb.FindDecisionsRequest, context: Context) -> pb.FindDecisionsResponse:
        """How requests of one id ended."""
        if not request.id:
            raise BadInput("", "id: missing")
        return await self._watching.find(request.id)

    @answers_errors
    async def WatchDecisions(  # type: ignore[override] # a handler may write to the context instead of yielding
        self, request: pb.WatchDecisionsRequest, context: Context
    ) -> None:
        """Requests and graphs from now on."""
        await self._watching.watch(request, context)


def _shape(wire: Mapping[str, int]) -> dict[str, int]:
    shape = dict(wire)
    for axis, size in shape.items():
        if size <= 0:
            raise BadInput("", f"axis {axis!r}: size {size} is not positive")
    return shape


def _explanation(found: Explanation) -> pb.ExplainResponse:
    return pb.ExplainResponse(
        model=found.model,
        version=found.version,
        path=PATHS[found.path],
        fallback_reason=fallback_of(found.reason),
        refusal_reason=refusal_of(found.reason, found.detail),
        detail=found.detail,
        bucket=sizes_of(found.bucket),
        padding_ratio=found.padding_ratio,
        predicted_s=found.predicted_s,
        hint=found.hint,
        mode=mode_state(found.mode),
    )


def _plan(found: Plan) -> pb.PlanResponse:
    return pb.PlanResponse(
        model=found.model,
        version=found.version,
        variant=dict(found.variant),
        runs=found.runs,
        seconds=found.seconds,
        graphs=[
            pb.PlannedGraph(
                bucket=graph.bucket.as_dict(),
                runs_per_s=graph.runs_per_s,
                adds_s_per_s=graph.adds_s_per_s,
                bytes=graph.bytes,
                capture_s=graph.capture_s,
            )
            for graph in found.graphs
        ],
        ladder={axis: pb.AxisSizes(sizes=sizes) for axis, sizes in found.ladder.items()},
        alternatives=[
            pb.PlanAlternative(
                name=other.name,
                graphs=other.graphs,
                saved_s_per_s=other.saved_s_per_s,
                padding_ratio=other.padding_ratio,
                bytes=other.bytes,
            )
            for other in found.alternatives
        ],
        marginal_s_per_s_per_mib=found.marginal_s_per_s_per_mib,
        sessions_displaced=found.sessions_displaced,
        histogram=[pb.SizeRuns(size=size.as_dict(), runs=runs) for size, runs in found.histogram],
    )


def _model(status: ModelStatus) -> pb.Model:
    return pb.Model(name=status.name, version=status.version, state=MODEL_STATES[status.state], reason=status.reason)
