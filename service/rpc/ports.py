"""What the servicers need of the worker: the whole of the border between the wire and the flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from service.messages import (
    BudgetChange,
    Explanation,
    GraphInfo,
    InferReply,
    InferRequest,
    ModelStats,
    ModelStatus,
    ModeState,
    Parameter,
    Plan,
)
from service.models.spec import ModelSpec, Shape
from service.snapshot import Decision, Entry, Snapshot


class Inference(Protocol):
    """Answers requests; everything here is called on the event loop. Errors are those of `service.errors`."""

    async def infer(self, request: InferRequest) -> InferReply:
        """Answer a request; cancelling the call cancels the request."""
        ...

    def models(self) -> list[ModelStatus]:
        """Every known version of every model."""
        ...

    def spec(self, model: str, version: str = "") -> ModelSpec:
        """The spec of a model that is up."""
        ...

    def statistics(self, model: str = "", version: str = "") -> list[ModelStats]:
        """Counters of one version, of all versions of a model, or of all models."""
        ...


class Observations(Protocol):
    """Looks at a running worker. May be called from any thread."""

    def snapshot(self) -> Snapshot:
        """Everything now."""
        ...

    @property
    def journal(self) -> Decisions:
        """What was decided of late."""
        ...


class Decisions(Protocol):
    """Recent decisions, numbered."""

    @property
    def number(self) -> int:
        """Of the latest entry."""
        ...

    @property
    def kept(self) -> int:
        """Requests that can be looked up."""
        ...

    def find(self, name: str) -> list[Decision]:
        """By request id or trace id, oldest first."""
        ...

    def since(self, number: int, *, replays: bool = True) -> list[Entry]:
        """Entries after this number, oldest first, as far as they are kept."""
        ...


class Operations(Protocol):
    """Acts on a running worker; everything here is called on the event loop. Errors are those of `service.errors`."""

    def graphs(self, model: str = "") -> list[GraphInfo]:
        """The graphs of a model or of all models, in whatever state."""
        ...

    def explain(self, model: str, version: str, shape: Shape, parameters: Mapping[str, Parameter]) -> Explanation:
        """What would happen to a request of this shape now."""
        ...

    async def warm(self, model: str, version: str, shape: Shape, parameters: Mapping[str, Parameter], force: bool) -> GraphInfo:
        """Capture the bucket that covers a shape, and wait until its graph serves."""
        ...

    async def evict(self, model: str, version: str, shape: Shape | None, parameters: Mapping[str, Parameter]) -> int:
        """Drop a bucket's graph, or all of a variant; returns how many went."""
        ...

    def pin(self, model: str, version: str, shape: Shape, parameters: Mapping[str, Parameter], pinned: bool) -> GraphInfo:
        """Protect a graph from eviction, or stop doing so."""
        ...

    def set_mode(self, model: str, version: str, parameters: Mapping[str, Parameter], mode: str, for_s: float | None) -> ModeState:
        """Switch graphs for a model or some of its variants."""
        ...

    async def set_budget(self, budget: int) -> BudgetChange:
        """Resize the cache to so many bytes."""
        ...

    def plan(
        self, model: str, version: str, parameters: Mapping[str, Parameter], budget: int | None, graphs: int, session_bytes: int
    ) -> Plan:
        """The best buckets for the traffic seen so far; `budget` None means the cache's, `graphs` 0 any number."""
        ...

    async def load(self, text: str) -> ModelStatus:
        """Put a model up from its configuration in YAML."""
        ...

    async def unload(self, model: str, version: str = "") -> None:
        """Take a model down."""
        ...

    async def reload(self, model: str, version: str = "", weights: str = "") -> ModelStatus:
        """Replace a model's weights."""
        ...
