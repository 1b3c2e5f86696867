"""What goes into and comes out of the worker: plain values, independent of the wire and of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from cachepolicy.buckets import Bucket
from cachepolicy.reasons import FallbackReason
from service.tensors import HostTensor

if TYPE_CHECKING:
    from service.models.spec import ModelSpec

Parameter = bool | int | float | str


class Path(StrEnum):
    """How a request was served."""

    REPLAY = "replay"
    EAGER = "eager"


class GraphMode(StrEnum):
    """Whether a model may use graphs. `full` wants every bucket captured; `auto` leaves it to the policy."""

    NONE = "none"
    FULL = "full"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ModeState:
    """The mode in force, who set it, and when (seconds since the epoch); `until` where it expires."""

    mode: GraphMode
    origin: str  # "configuration" or "rpc"
    since: float
    until: float | None = None


@dataclass(slots=True)
class InferRequest:
    """One request. `deadline` is in seconds of time.monotonic(); `outputs` empty means all of them."""

    model: str
    inputs: Mapping[str, HostTensor]
    version: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    request_id: str = ""
    deadline: float | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs."""
        return sum(tensor.nbytes for tensor in self.inputs.values())


@dataclass(slots=True)
class Outcome:
    """How a request was served. Times are in seconds; a request in parts has the worst part's reason and the largest bucket."""

    path: Path
    reason: FallbackReason | None = None
    detail: str = ""
    bucket: Bucket | None = None
    padding_ratio: float = 0.0
    batch_rows: int = 0
    parts: int = 1
    queue_s: float = 0.0
    execute_s: float = 0.0
    key: str = ""
    variant: tuple[tuple[str, str], ...] = ()
    mode: ModeState | None = None


@dataclass(slots=True)
class InferReply:
    """Outputs in the model's order, and how they came to be."""

    model: str
    version: str
    outputs: dict[str, HostTensor]
    outcome: Outcome
    shape: Mapping[str, int] = field(default_factory=dict)  # axis to the size that was asked for


@dataclass(frozen=True, slots=True)
class Explanation:
    """What would happen to a request of this shape now, and why."""

    model: str
    version: str
    path: Path
    reason: FallbackReason | None
    detail: str
    bucket: Bucket | None
    padding_ratio: float
    predicted_s: float | None
    hint: str
    mode: ModeState


@dataclass(frozen=True, slots=True)
class GraphInfo:
    """One line of `graphcache graphs`. `state`: pending capturing verifying serving shadow refused retiring."""

    model: str
    version: str
    variant: tuple[tuple[str, str], ...]
    bucket: Bucket
    state: str
    key: str = ""
    hits: int = 0
    saved_s: float = 0.0
    bytes: int = 0
    arena: str = ""
    last_used_s: float | None = None  # seconds ago
    pinned: bool = False
    reason: str = ""
    padding_ratio: float = 0.0  # padded per real elements of its replays


@dataclass(frozen=True, slots=True)
class BudgetChange:
    """Bytes after a resize. `freed` went back to the device; `reusable` the driver keeps for later graphs."""

    budget: int
    used: int
    freed: int
    reusable: int


@dataclass(frozen=True, slots=True)
class PlannedGraph:
    """A bucket of a plan, in the order of prewarming: what it serves, and what it adds to those before it."""

    bucket: Bucket
    runs_per_s: float
    adds_s_per_s: float  # seconds saved per second
    bytes: int
    capture_s: float


@dataclass(frozen=True, slots=True)
class PlanAlternative:
    """A set of buckets by name, within the same budget."""

    name: str
    graphs: int
    saved_s_per_s: float
    padding_ratio: float  # padded per real element of what is replayed
    bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The best buckets for the traffic of one variant. The first alternative is the plan itself."""

    model: str
    version: str
    variant: tuple[tuple[str, str], ...]
    runs: int
    seconds: float
    graphs: Sequence[PlannedGraph]
    ladder: Mapping[str, Sequence[int]]
    alternatives: Sequence[PlanAlternative]
    marginal_s_per_s_per_mib: float
    sessions_displaced: float | None
    histogram: Sequence[tuple[Bucket, int]]  # runs per exact size


class ModelState(StrEnum):
    """Where a version of a model stands."""

    READY = "READY"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One version of a model; `reason` says why it is unavailable, `spec` is there once it is known."""

    name: str
    version: str
    state: ModelState
    reason: str = ""
    spec: ModelSpec | None = None


@dataclass(frozen=True, slots=True)
class ModelStats:
    """Counters of one version of a model since it was loaded. Durations are sums, in nanoseconds.

    Queue and compute times count successful requests only; `batch_sizes` has (rows, batches, nanoseconds) per batch size.
    """

    model: str
    version: str
    last_inference_ms: int = 0  # since the epoch
    inference_count: int = 0  # rows
    execution_count: int = 0  # batches
    success_count: int = 0  # requests
    success_ns: int = 0
    fail_count: int = 0
    fail_ns: int = 0
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0
    batch_sizes: tuple[tuple[int, int, int], ...] = ()
