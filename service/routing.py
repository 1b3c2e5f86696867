"""The one decider: mode → variant → bucket → key → lookup. Either a resident graph, or eager with a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Protocol

from cachepolicy.buckets import Bucket
from cachepolicy.cache import GraphCache, GraphEntry
from cachepolicy.keys import GraphKey
from cachepolicy.reasons import FallbackReason
from service.messages import GraphMode
from service.models.spec import Shape, Variant

if TYPE_CHECKING:
    from service.registry import ServedModel


@dataclass(frozen=True, slots=True)
class Replay:
    """Serve by this graph. After `Router.route` it is marked in use: give it back with `GraphCache.release`."""

    entry: GraphEntry


@dataclass(frozen=True, slots=True)
class Eager:
    """Run eagerly, for this reason. `bucket` is the one that would have served it, where one covers the shape."""

    reason: FallbackReason
    detail: str = ""
    bucket: Bucket | None = None


Route = Replay | Eager
Settings = tuple[object, ...]


class Captures(Protocol):
    """What the router asks of the capturer."""

    def absence(self, key: GraphKey) -> tuple[FallbackReason, str]:
        """Why this key has no resident graph, and the detail."""
        ...

    def pays(self, entry: GraphEntry, key: GraphKey) -> bool:
        """Whether a run whose own bucket is the key's is faster replayed by this graph than eagerly."""
        ...

    def count(self, key: GraphKey, shape: Shape, serving: GraphKey | None) -> None:
        """A run of this exact size, whose own bucket is the key's, goes to the graph `serving`, or is run eagerly. Constant time."""
        ...


class Router:
    """Decides for a batch. `explain` decides the same and leaves no trace."""

    def __init__(self, cache: GraphCache, captures: Captures, drift: Callable[[Settings], str]) -> None:
        """`drift` says which settings are not any more as they were when a model was loaded; "" where all are."""
        self._cache = cache
        self._captures = captures
        self._drift = drift

    def route(self, served: ServedModel, variant: Variant, shape: Shape) -> Route:
        """Where a batch of this shape goes. Called by the lane's thread right before the run; `count` it afterwards."""
        mode = served.mode(variant, time())
        if mode.mode is GraphMode.NONE:
            return Eager(FallbackReason.DISABLED, f"mode none, set by {mode.origin}")
        fit = served.ladder.fit(shape)
        if fit is None:
            return Eager(FallbackReason.NO_BUCKET, _oversize(served, shape))
        if drifted := self._drift(served.surroundings.settings):
            return Eager(FallbackReason.STALE, drifted, fit)
        signature = served.signature(variant)
        key = served.key(variant, fit)
        entry = self._cache.acquire(signature, shape, fit)
        slower = ""
        if entry is not None:
            if self._captures.pays(entry, key):
                return Replay(entry)
            self._cache.release(entry)
            slower = f"eager is faster than {entry.key.bucket}"
        elif (exact := self._cache.get(key)) is not None:
            return Eager(FallbackReason.EXACT_ONLY, exact.detail or f"only {fit} itself is served", fit)
        reason, detail = self._captures.absence(key)
        return Eager(reason, detail or slower, fit)

    def count(self, served: ServedModel, variant: Variant, shape: Shape, route: Route) -> None:
        """Tell the policy how a batch was routed. What an operator switched off, or another's settings, is no demand for graphs."""
        fit = served.ladder.fit(shape)
        if fit is not None and not (isinstance(route, Eager) and route.reason in (FallbackReason.DISABLED, FallbackReason.STALE)):
            self._captures.count(served.key(variant, fit), shape, route.entry.key if isinstance(route, Replay) else None)

    def explain(self, served: ServedModel, variant: Variant, shape: Shape) -> Route:
        """The same decision without counting it; the entry is not kept in use."""
        route = self.route(served, variant, shape)
        if isinstance(route, Replay):
            self._cache.release(route.entry)
        return route


def _oversize(served: ServedModel, shape: Shape) -> str:
    above = [f"{axis.name} {shape[axis.name]} > {axis.max}" for axis in served.spec.axes if shape[axis.name] > axis.max]
    return ", ".join(above)
