"""AdminService, over real sockets: what reaches the operations and what comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest

from cachepolicy.reasons import RefusalReason
from service.errors import CaptureRefused, Conflict
from service.messages import ModelState
from service.pb.graphcache.v1 import admin_pb2 as pb
from service.pb.graphcache.v1 import replay_pb2
from tests.service.rpc.double import Node, listening

SHAPE = {"batch": 3, "seq": 17}
LEGAL = {"adapter": replay_pb2.Parameter(string_value="legal")}


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """Operations behind a real socket."""
    async with listening() as node:
        yield node


def test_model_states_are_those_of_the_worker() -> None:
    """Same names on both sides."""
    assert set(pb.ModelState.keys()) == {f"MODEL_STATE_{state.name}" for state in ModelState} | {"MODEL_STATE_UNSPECIFIED"}


async def test_graphs_are_listed_with_all_they_have(node: Node) -> None:
    """State, bucket, hits, bytes."""
    (graph,) = (await node.admin.ListGraphs(pb.ListGraphsRequest(model="echo"))).graphs
    assert node.operations.asked == [("graphs", "echo")]
    assert (graph.model, graph.version, dict(graph.variant), dict(graph.bucket)) == (
        "echo",
        "1",
        {"adapter": "base"},
        {"batch": 4, "seq": 8},
    )
    assert (graph.state, graph.key, graph.hits, graph.saved_s, graph.bytes) == (pb.GRAPH_STATE_SERVING, "abc", 7, 1.5, 4096)
    assert graph.last_used_s == 2.0


async def test_explanation_names_the_refusal_and_a_hint(node: Node) -> None:
    """And whose mode is in force; no prediction where nothing was measured."""
    found = await node.admin.Explain(pb.ExplainRequest(model="echo", shape=SHAPE, parameters=LEGAL))
    assert node.operations.asked == [("explain", "echo", "", SHAPE, {"adapter": "legal"})]
    assert (found.path, found.fallback_reason, found.refusal_reason) == (
        replay_pb2.PATH_EAGER,
        replay_pb2.FALLBACK_REASON_REFUSED,
        replay_pb2.REFUSAL_REASON_RNG,
    )
    assert "doctor" in found.hint
    assert not found.HasField("predicted_s")
    assert found.mode.origin == "configuration"


async def test_actions_reach_the_operations(node: Node) -> None:
    """With shape, variant and flags."""
    assert (await node.admin.Warm(pb.WarmRequest(model="echo", shape=SHAPE, parameters=LEGAL, force=True))).graph.key == "abc"
    assert (await node.admin.Evict(pb.EvictRequest(model="echo", version="1", shape=SHAPE))).evicted == 3
    assert (await node.admin.Evict(pb.EvictRequest(model="echo"))).evicted == 3
    await node.admin.Pin(pb.PinRequest(model="echo", shape=SHAPE, pinned=True))
    loaded = await node.admin.LoadModel(pb.LoadModelRequest(config_yaml="name: new"))
    assert (loaded.model.name, loaded.model.state) == ("new", pb.MODEL_STATE_READY)
    await node.admin.UnloadModel(pb.UnloadModelRequest(model="new", version="1"))
    await node.admin.ReloadModel(pb.ReloadModelRequest(model="echo", weights_path="w.safetensors"))
    budget = await node.admin.SetBudget(pb.SetBudgetRequest(bytes=1 << 30))
    assert (budget.budget_bytes, budget.used_bytes, budget.freed_bytes, budget.reusable_bytes) == (1 << 30, 17, 5, 3)
    assert node.operations.asked == [
        ("warm", "echo", "", SHAPE, {"adapter": "legal"}, True),
        ("evict", "echo", "1", SHAPE, {}),
        ("evict", "echo", "", None, {}),
        ("pin", "echo", "", SHAPE, {}, True),
        ("load", "name: new"),
        ("unload", "new", "1"),
        ("reload", "echo", "", "w.safetensors"),
        ("set_budget", 1 << 30),
    ]


async def test_a_plan_crosses_the_wire(node: Node) -> None:
    """Budget and sessions are optional, and told apart from zero."""
    plan = await node.admin.Plan(pb.PlanRequest(model="echo", parameters=LEGAL, budget_bytes=0, graphs=3, session_bytes=500))
    assert (plan.runs, list(plan.ladder["batch"].sizes), plan.sessions_displaced) == (10, [4], 2.0)
    assert (dict(plan.graphs[0].bucket), plan.graphs[0].adds_s_per_s, plan.alternatives[0].name) == ({"batch": 4}, 0.5, "best")
    assert not (await node.admin.Plan(pb.PlanRequest(model="echo"))).HasField("sessions_displaced")
    assert node.operations.asked[-2:] == [("plan", "echo", "", {"adapter": "legal"}, 0, 3, 500), ("plan", "echo", "", {}, None, 0, 0)]


async def test_mode_with_and_without_expiry(node: Node) -> None:
    """The reply shows what is in force now."""
    state = (await node.admin.SetGraphMode(pb.SetGraphModeRequest(model="echo", mode="none", for_s=60))).mode
    assert (state.mode, state.origin, state.since, state.until) == (replay_pb2.GRAPH_MODE_NONE, "rpc", 2000.0, 2060.0)
    state = (await node.admin.SetGraphMode(pb.SetGraphModeRequest(model="echo", mode="none"))).mode
    assert not state.HasField("until")


async def _code(call: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call  # type: ignore[misc]
    return failed.value.code(), failed.value.details() or ""


async def test_failures_have_their_status(node: Node) -> None:
    """Refused captures and conflicts are preconditions; a mode that is not built says so; sizes are checked."""
    code, text = await _code(node.admin.SetGraphMode(pb.SetGraphModeRequest(model="echo", mode="piecewise")))
    assert (code, "piecewise" in text) == (grpc.StatusCode.UNIMPLEMENTED, True)
    code, text = await _code(node.admin.Warm(pb.WarmRequest(model="echo", shape={"seq": -3})))
    assert (code, "seq" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    node.operations.error = CaptureRefused(RefusalReason.RNG, "aten.bernoulli")
    assert await _code(node.admin.Warm(pb.WarmRequest(model="echo", shape=SHAPE))) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "rng: aten.bernoulli",
    )
    node.operations.error = Conflict("not resident")
    assert await _code(node.admin.Pin(pb.PinRequest(model="echo", shape=SHAPE))) == (grpc.StatusCode.FAILED_PRECONDITION, "not resident")


async def test_admin_calls_on_the_inference_port_are_refused(node: Node) -> None:
    """Whoever may send requests may not act on the worker."""
    call = node.channel.unary_unary(
        "/graphcache.v1.AdminService/ListGraphs", pb.ListGraphsRequest.SerializeToString, pb.ListGraphsResponse.FromString
    )
    code, _ = await _code(call(pb.ListGraphsRequest()))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert node.operations.asked == []
