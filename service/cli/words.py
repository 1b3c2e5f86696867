"""The protocol's messages as the words and JSON keys that the command line prints; scripts and dashboards lean on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.pb.graphcache.v1.admin_pb2 import Decision, ExplainResponse, GetStatusResponse, Graph, GraphState, ModelView, PlanResponse
from service.pb.graphcache.v1.replay_pb2 import DescribeModelResponse, FallbackReason, GraphMode, ModeState, Outcome, Path, RefusalReason

Words = dict[str, Any]


def path(value: Path) -> str:
    """`replay` or `eager`."""
    return Path.Name(value).removeprefix("PATH_").lower()


def reason(value: FallbackReason) -> str | None:
    """A fallback reason's name, or None where there is none."""
    return FallbackReason.Name(value).removeprefix("FALLBACK_REASON_").lower() if value else None


def refusal(value: RefusalReason) -> str:
    """A refusal reason's name, or "" where there is none."""
    return RefusalReason.Name(value).removeprefix("REFUSAL_REASON_").lower() if value else ""


def detail(of: Outcome | ExplainResponse | Decision) -> str:
    """What stands behind the reason; for a refusal it begins with the refusal's name."""
    name = refusal(of.refusal_reason)
    return of.detail if of.detail.startswith(name) else f"{name}: {of.detail}".removesuffix(": ")


def mode(of: ModeState) -> Words:
    """The mode in force, who set it, since and until when."""
    return {
        "mode": GraphMode.Name(of.mode).removeprefix("GRAPH_MODE_").lower(),
        "origin": of.origin,
        "since": of.since,
        "until": of.until if of.HasField("until") else None,
    }


def variant(of: Mapping[str, str]) -> str:
    """`adapter=legal`, or "" for a model without variants."""
    return ",".join(f"{name}={value}" for name, value in sorted(of.items()))


def outcome(of: Outcome, model: DescribeModelResponse) -> Words:
    """How a request was served."""
    return {
        "path": path(of.path),
        "reason": reason(of.fallback_reason),
        "detail": detail(of),
        "bucket": bucket(of.bucket, model),
        "padding_ratio": of.padding_ratio,
        "batch_rows": of.batch_rows,
        "parts": of.parts,
        "queue_ms": of.queue_s * 1e3,
        "execute_ms": of.execute_s * 1e3,
        "key": of.graph_key,
    }


def bucket(of: Mapping[str, int], model: DescribeModelResponse | None = None) -> dict[str, int] | None:
    """Axis to padded size, in the order of the model's axes where it is given, or None."""
    order = [axis.name for axis in model.axes] if model else sorted(of)
    return {axis: of[axis] for axis in order if axis in of} or None


def explanation(of: ExplainResponse) -> Words:
    """What would happen to a request, and why."""
    return {
        "model": of.model,
        "version": of.version,
        "path": path(of.path),
        "reason": reason(of.fallback_reason),
        "detail": detail(of),
        "bucket": bucket(of.bucket),
        "padding_ratio": of.padding_ratio,
        "predicted_ms": of.predicted_s * 1e3 if of.HasField("predicted_s") else None,
        "hint": of.hint,
        "mode": mode(of.mode),
    }


def graph(of: Graph) -> Words:
    """One line of the cache."""
    return {
        "model": of.model,
        "version": of.version,
        "variant": variant(of.variant),
        "bucket": bucket(of.bucket),
        "state": GraphState.Name(of.state).removeprefix("GRAPH_STATE_").lower(),
        "hits": of.hits,
        "saved_s": of.saved_s,
        "bytes": of.bytes,
        "arena": of.arena,
        "last_used_s": of.last_used_s if of.HasField("last_used_s") else None,
        "pinned": of.pinned,
        "reason": of.reason,
        "padding_ratio": of.padding_ratio,
        "key": of.key,
    }


def decision(of: Decision) -> Words:
    """How one request ended."""
    return {
        "at": of.at,
        "model": of.model,
        "version": of.version,
        "request_id": of.request_id,
        "trace_id": of.trace_id,
        "shape": bucket(of.shape),
        "outcome": of.outcome,
        "reason": reason(of.fallback_reason),
        "detail": detail(of),
        "hint": of.hint,
        "bucket": bucket(of.bucket),
        "variant": variant(of.variant),
        "padding_ratio": of.padding_ratio,
        "batch_rows": of.batch_rows,
        "parts": of.parts,
        "queue_ms": of.queue_s * 1e3,
        "execute_ms": of.execute_s * 1e3,
        "total_ms": of.total_s * 1e3,
    }


def model(of: ModelView) -> Words:
    """One model since the worker started."""
    return {
        "model": of.name,
        "versions": list(of.versions),
        "outcomes": dict(of.outcomes),
        "saved_s": of.saved_s,
        "slower_s": of.slower_s,
        "reasons": [
            {"reason": reason(r.fallback_reason), "requests": r.requests, "lost_s": r.lost_s, "detail": r.detail, "hint": r.hint}
            for r in of.reasons
        ],
        "alarm": of.alarm,
    }


def status(of: GetStatusResponse) -> Words:
    """A worker at one moment."""
    memory = of.memory
    return {
        "worker": of.worker,
        "program_version": of.program_version,
        "device": of.device,
        "at": of.at,
        "uptime_s": of.uptime_s,
        "ready": of.ready,
        "waiting": of.load.waiting,
        "running": of.load.running,
        "saturation": of.load.saturation,
        "busy_ratio": of.load.busy_ratio,
        "backlog_s": dict(of.load.backlog_s),
        "budget_bytes": of.budget_bytes,
        "used_bytes": of.used_bytes,
        "reusable_bytes": of.reusable_bytes,
        "memory_used_bytes": memory.memory_used_bytes if of.HasField("memory") else None,
        "memory_total_bytes": memory.memory_total_bytes if of.HasField("memory") else None,
        "models": [model(one) for one in of.models],
        "modes": [{"model": one.model, "variant": variant(one.variant), **mode(one.mode)} for one in of.modes],
        "graphs": [graph(one) for one in of.graphs],
    }


def plan(of: PlanResponse) -> Words:
    """A plan; savings in milliseconds per second."""
    return {
        "model": of.model,
        "version": of.version,
        "variant": variant(of.variant),
        "runs": of.runs,
        "seconds": of.seconds,
        "ladder": {axis: list(sizes.sizes) for axis, sizes in of.ladder.items()},
        "graphs": [
            {
                "bucket": bucket(graph.bucket),
                "runs_per_s": graph.runs_per_s,
                "adds_ms_per_s": graph.adds_s_per_s * 1e3,
                "bytes": graph.bytes,
                "capture_ms": graph.capture_s * 1e3,
            }
            for graph in of.graphs
        ],
        "alternatives": [
            {
                "name": other.name,
                "graphs": other.graphs,
                "saved_ms_per_s": other.saved_s_per_s * 1e3,
                "padding_ratio": other.padding_ratio,
                "bytes": other.bytes,
            }
            for other in of.alternatives
        ],
        "marginal_ms_per_s_per_mib": of.marginal_s_per_s_per_mib * 1e3,
        "sessions_displaced": of.sessions_displaced if of.HasField("sessions_displaced") else None,
        "histogram": [{"size": bucket(entry.size), "runs": entry.runs} for entry in of.histogram],
    }
