"""Windows and costs as fields and values of text, the same in every store; and back, with every record checked.

    window   {"model": "encoder", "variant": {}, "phase": "any", "shape": {"batch": 4, "seq": 57}}  →  812
             the shapes "rounded" and "other" stand for runs that are counted at a larger shape, or at none (cachepolicy/profile.py)
             @worker, @window, @seconds  →  whose window this is, when it began, how long traffic was watched in it
    costs    {"environment": "5ce…", "bucket": {"batch": 8}}  →  {"eager_s": …, "replay_s": …, "capture_s": …, "bytes": …, …}

What a window or a record belongs to is told inside it, and compared with the key that it was found under.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache

from cachepolicy.profile import LONGEST_NAME, MOST_SIZE, Shape, Tally, TrafficProfile, Workload, number, read_shape, read_workload
from service.stores.base import CostRecord, Window

Skipped = Callable[[], None]  # is called for every record that is not valid


def window_fields(window: Window) -> dict[str, str]:
    """A window as fields."""
    fields = {"@worker": window.worker, "@window": moment(window.start), "@seconds": _number(window.traffic.seconds)}
    for workload, tally in window.traffic.tallies.items():
        for shape, runs in tally.shapes().items():
            fields[_runs_field(workload, shape)] = _number(runs)
        for rest, runs in (("rounded", tally.rounded), ("other", tally.other)):
            if runs:
                fields[_runs_field(workload, rest)] = _number(runs)
    return fields


@lru_cache(maxsize=4096)  # the same ones every few seconds, on the loop that answers requests
def _runs_field(workload: Workload, shape: Shape | str) -> str:
    told = shape if isinstance(shape, str) else dict(shape)
    return _json({"model": workload.model, "variant": dict(workload.variant), "phase": workload.phase, "shape": told})


def read_window(start: int, worker: str, fields: Mapping[str, str], skipped: Skipped) -> Window | None:
    """The window that these fields are; None where they don't say that they are this one."""
    if not fields:
        return None  # expired meanwhile
    if fields.get("@worker") != worker or fields.get("@window") != moment(start):
        skipped()
        return None
    traffic = TrafficProfile(now=float(start))
    for field, value in fields.items():
        try:
            if field == "@seconds":
                traffic.seconds = number(float(value), field)
            elif not field.startswith("@"):
                _read_runs(traffic, field, value)
        except (ValueError, RecursionError):
            skipped()
    return Window(start, worker, traffic)


def _read_runs(traffic: TrafficProfile, field: str, value: str) -> None:
    named, runs = _loads(field), number(float(value), field)
    workload = read_workload(named)
    match named.get("shape"):
        case "rounded":
            traffic.tallies.setdefault(workload, Tally()).rounded += runs
        case "other":
            traffic.tallies.setdefault(workload, Tally()).other += runs
        case shape:
            traffic.note(workload, read_shape(shape), traffic.now, runs)


def cost_field(record: CostRecord) -> str:
    """Names a record among those of its program."""
    return _json({"environment": record.environment, "bucket": dict(record.bucket)})


def cost_value(record: CostRecord, now: float) -> str:
    """What was measured, and when."""
    return _json(
        {
            "eager_s": record.eager_s,
            "replay_s": record.replay_s,
            "capture_s": record.capture_s,
            "bytes": record.bytes,
            "arena_bytes": record.arena_bytes,
            "model": record.model,
            "device": record.device,
            "measured": moment(now),
        }
    )


def read_cost(program: str, field: str, value: str, skipped: Skipped) -> CostRecord | None:
    """The record, where it is valid."""
    try:
        return cost_from_plain({**_loads(value), **_loads(field), "program": program})
    except (ValueError, RecursionError):
        skipped()
        return None


def cost_from_plain(value: object, place: str = "cost") -> CostRecord:
    """A record from plain data, by the names of its fields. Raises ValueError, naming the place."""
    if not isinstance(value, dict):
        raise ValueError(f"{place}: must be a mapping")  # noqa: TRY004 - all that is wrong with a record is told alike
    return CostRecord(
        environment=_fingerprint(value, "environment", place),
        program=_fingerprint(value, "program", place),
        bucket=read_shape(value.get("bucket"), f"{place}.bucket"),
        eager_s=_at_most(3600.0, value, "eager_s", place),
        replay_s=_at_most(3600.0, value, "replay_s", place),
        capture_s=_at_most(3600.0, value, "capture_s", place),
        bytes=int(_at_most(MOST_SIZE, value, "bytes", place)),
        arena_bytes=int(_at_most(MOST_SIZE, value, "arena_bytes", place)),
        model=str(value.get("model", ""))[:LONGEST_NAME],
        device=str(value.get("device", ""))[:LONGEST_NAME],
    )


def moment(seconds: float) -> str:
    """A time of the epoch as people write it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _fingerprint(value: Mapping[str, object], name: str, place: str) -> str:
    found = value.get(name)
    if not isinstance(found, str) or not 1 <= len(found) <= LONGEST_NAME:
        raise ValueError(f"{place}.{name}: must be a fingerprint")
    return found


def _at_most(most: float, value: Mapping[str, object], name: str, place: str) -> float:
    found = number(value.get(name), f"{place}.{name}")
    if found > most:
        raise ValueError(f"{place}.{name}: {found:g} can't be")
    return found


def _json(value: object) -> str:
    return json.dumps(value, separators=(", ", ": "), ensure_ascii=False)


def _loads(text: str) -> dict[str, object]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("must be a mapping")  # noqa: TRY004 - all that is wrong with a record is told alike
    return value


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
