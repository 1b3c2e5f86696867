"""A running worker at one moment and what it decided of late, as plain values: gauges, the status page and `graphcache top` show these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from cachepolicy.buckets import Bucket
from cachepolicy.reasons import FallbackReason
from service.messages import GraphInfo, ModeState


@dataclass(slots=True)  # not frozen: one is made for each request, and freezing would take most of the time
class Decision:
    """How one request ended. Durations are seconds, `at` is the epoch's; `outcome` is a path, or why there was no answer."""

    at: float
    model: str
    version: str
    request_id: str
    trace_id: str  # empty where no trace was recorded
    shape: Mapping[str, int]
    outcome: str  # replay eager rejected expired cancelled error
    reason: FallbackReason | None = None
    detail: str = ""
    hint: str = ""
    bucket: Bucket | None = None
    variant: tuple[tuple[str, str], ...] = ()
    padding_ratio: float = 0.0
    batch_rows: int = 0
    parts: int = 1
    queue_s: float = 0.0
    execute_s: float = 0.0
    total_s: float = 0.0
    number: int = 0  # counts all entries of the journal, which gives it


class Happening(StrEnum):
    """What became of a graph."""

    CAPTURED = "captured"
    REFUSED = "refused"
    EVICTED = "evicted"


@dataclass(frozen=True, slots=True)
class GraphEvent:
    """Something became of a graph. `seconds` is what a capture took, proof included; `detail` says why it was refused."""

    number: int
    at: float
    happening: Happening
    model: str
    bucket: Bucket
    variant: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0
    bytes: int = 0
    detail: str = ""


Entry = Decision | GraphEvent


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """Fallbacks of a model for one reason: requests, and the seconds that they cost. `detail` and `hint` are the latest one's."""

    reason: FallbackReason
    requests: int
    lost_s: float
    detail: str
    hint: str


@dataclass(frozen=True, slots=True)
class VariantMode:
    """The graph mode of one variant of a model."""

    model: str
    variant: tuple[tuple[str, str], ...]
    state: ModeState


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model, all versions together, since the worker started. `alarm` says that its graphs are effectively off, and why."""

    name: str
    versions: Sequence[str]
    outcomes: Mapping[str, int]
    saved_s: float
    slower_s: float  # replays that took longer than eager would have: to be taken off `saved_s`
    reasons: Sequence[ReasonCount]
    alarm: str = ""


@dataclass(frozen=True, slots=True)
class SizeCount:
    """Runs of one exact size, and the bucket it falls into."""

    model: str
    variant: tuple[tuple[str, str], ...]
    size: Bucket
    runs: int
    bucket: Bucket | None


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """What the driver tells of the device; None where it does not."""

    memory_used: int
    memory_total: int
    utilization: float | None = None
    clocks: Mapping[str, float] = field(default_factory=dict)  # domain → hertz


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the worker is. `backlog_s`: predicted seconds of waiting work by path; `saturation`: 1 where requests are refused."""

    waiting: int
    running: int
    saturation: float
    busy_ratio: float
    backlog_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment."""

    worker: str
    program: str
    device: str
    at: float
    uptime_s: float
    ready: bool
    load: Load
    budget: int
    used: int
    reusable: int
    memory: DeviceReading | None
    models: Sequence[ModelView]
    modes: Sequence[VariantMode]
    graphs: Sequence[GraphInfo]
    sizes: Sequence[SizeCount]
    events: Sequence[GraphEvent] = ()  # of late, oldest first
