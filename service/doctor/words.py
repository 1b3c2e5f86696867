"""A report as plain data: the JSON that scripts and a model author's CI read."""

from __future__ import annotations

import linecache
from typing import Any

from service.backends.blockers import Place
from service.doctor.consulting import Report
from service.doctor.diagnosis import Obstacle, Tried
from service.doctor.profit import EXPLANATIONS, Profit
from service.doctor.serving import Serving

Words = dict[str, Any]


def source_line(place: Place | None) -> str:
    """The line of code itself, where its file can be read."""
    return linecache.getline(place.file, place.line).strip() if place else ""


def report(of: Report) -> Words:
    """The whole document."""
    found, total = of.diagnosis, max(of.diagnosis.operations, 1)
    return {
        "model": of.model,
        "variant": dict(of.variant),
        "sizes": of.sizes,
        "bucket": of.bucket,
        "device": of.device,
        "capturable": found.capturable,
        "operations": found.operations,
        "blockers": [blocker(obstacle, total) for obstacle in found.obstacles],
        "segments": [segment(tried, total) for tried in found.segments],
        "note": found.note,
        "serves": None if found.serving is None else serving(found.serving),
        "profit": None if of.profit is None else profit(of.profit),
    }


def blocker(of: Obstacle, total: int) -> Words:
    """One blocking operation."""
    found, place = of.blocker, of.blocker.place
    return {
        "reason": str(found.reason),
        "operation": found.operation,
        "what": found.what,
        "module": found.module,
        "file": place.file if place else "",
        "line": place.line if place else None,
        "function": place.function if place else "",
        "source": source_line(place),
        "explanation": found.reason.explanation,
        "hint": found.hint,
        "detail": found.detail,
        "times": of.times,
        "keeps_out": of.keeps_out,
        "share": of.keeps_out / total,
        "movable": None if of.crossing is None else not of.crossing.fault,
        "not_movable_because": of.crossing.fault if of.crossing else "",
        "bytes": of.crossing.bytes if of.crossing else None,
    }


def segment(of: Tried, total: int) -> Words:
    """One run of operations between blockers. `captured` is None where it was not tried."""
    found = of.segment
    return {
        "first": found.first,
        "end": found.end,
        "operations": found.working,
        "share": found.working / total,
        "modules": list(found.modules),
        "from": found.lines[0],
        "to": found.lines[1],
        "captured": None if of.problem is None else not of.problem,
        "problem": of.problem or "",
    }


def serving(of: Serving) -> Words:
    """Which sizes a graph serves, and whether requests share a batch; `padding` is null where only exact sizes are served."""
    return {
        "padding": of.padding or None,
        "rows_independent": of.independent,
        "notes": [{"problem": problem, "hint": hint} for problem, hint in of.notes()],
    }


def profit(of: Profit) -> Words:
    """Times in seconds, shares of one."""
    predicted = max(of.predicted_s, 1e-12)
    return {
        "cause": str(of.cause),
        "explanation": EXPLANATIONS[of.cause],
        "eager_s": of.eager_s,
        "predicted_s": of.predicted_s,
        "measured_s": of.measured_s,
        "predicted_gain": of.eager_s / predicted,
        "measured_gain": of.eager_s / of.measured_s if of.measured_s else None,
        "saved_s": of.saved_s,
        "step_s": of.step_s,
        "submit_s": of.submit_s,
        "kernels": of.work.count,
        "kernel_s": of.work.seconds,
        "longest": [{"name": kernel.name, "count": kernel.count, "seconds": kernel.seconds} for kernel in of.work.kernels[:5]],
        "idle": of.idle,
        "parts_s": {
            "launch": of.parts.launch_s,
            "work": of.parts.work_s,
            "padding": of.parts.padding_s,
            "copies": of.parts.copies_s,
        },
        "copies": of.parts.copies_s / predicted,
        "padding": of.parts.padding_s / predicted,
        "region": of.region,
        "capture_s": of.capture_s,
        "steps": of.steps,
        "break_even_steps": of.break_even,
    }
