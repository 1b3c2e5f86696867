"""The models that are up: several names, several versions of each, and the graph mode of each variant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING

from cachepolicy.buckets import Bucket, BucketLadder
from cachepolicy.keys import GraphKey, Signature
from service.choices import Above, Rows
from service.errors import Conflict, Unavailable, UnknownModel
from service.messages import GraphMode, ModelState, ModelStatus, ModeState
from service.models.spec import ModelSpec, Shape, Variant
from service.statistics import ModelCounters
from service.tensors import Datatype

if TYPE_CHECKING:
    from service.config import ModelConfig
    from service.models.loaded import LoadedModel


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a model was loaded under: the environment's fingerprint, and the settings in it that a process may change while it runs."""

    environment: str
    settings: tuple[object, ...] = ()


class Wholeness:
    """Keeps weights from changing between the parts of one request. For the event loop; one change at a time."""

    def __init__(self) -> None:
        self._under_way = 0
        self._nothing_under_way, self._unchanging = asyncio.Event(), asyncio.Event()
        self._nothing_under_way.set()
        self._unchanging.set()

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Inside, the weights stay; waits for a change that is asked for."""
        while not self._unchanging.is_set():
            await self._unchanging.wait()
        self._under_way += 1
        self._nothing_under_way.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._nothing_under_way.set()

    @asynccontextmanager
    async def changed(self) -> AsyncIterator[None]:
        """Inside, the weights may be changed; requests in parts that have begun end before."""
        self._unchanging.clear()
        try:
            await self._nothing_under_way.wait()
            yield
        finally:
            self._unchanging.set()


@dataclass(slots=True, eq=False)
class ServedModel:
    """One version of a model. `loaded` is replaced by a reload; everything derived from the spec stays."""

    config: ModelConfig
    loaded: LoadedModel
    surroundings: Surroundings
    generation: int
    ladder: BucketLadder = field(init=False)
    other_ladder: BucketLadder = field(init=False)
    max_rows: int = field(init=False)
    wants_samples: bool = field(init=False)  # integers whose values only accepted requests can tell
    counters: ModelCounters = field(default_factory=ModelCounters)
    wholeness: Wholeness = field(default_factory=Wholeness)
    _by_rows: bool = field(init=False)
    _may_split: bool = field(init=False)
    _proven: dict[Variant, bool] = field(default_factory=dict)  # whether rows were found independent
    _configured: ModeState = field(init=False)
    _modes: dict[Variant, ModeState] = field(default_factory=dict)
    _signatures: dict[Variant, Signature] = field(default_factory=dict)
    _keys: dict[tuple[Variant, Bucket], GraphKey] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spec = self.loaded.spec
        axis = spec.axis(spec.batch_axis)
        shapes = [s.shape for s in spec.requested_inputs] + [s.shape for s in spec.outputs]
        by_rows = axis is not None and all(axis.name in shape for shape in shapes)
        self.ladder = spec.ladder
        self.other_ladder = BucketLadder(tuple((name, sizes) for name, sizes in self.ladder.axes if name != spec.batch_axis))
        self._by_rows = by_rows and spec.rows is not Rows.DEPENDENT
        self._may_split = axis is not None and axis.above is Above.SPLIT
        self.max_rows = axis.max if axis else 1
        slots = {state.index_input for state in spec.state}
        self.wants_samples = self.loaded.examples is None and any(
            not s.datatype.is_float and s.datatype is not Datatype.BOOL and s.range is None and s.name not in slots
            for s in spec.requested_inputs
        )
        self._configured = ModeState(spec.mode, "configuration", time())

    @property
    def spec(self) -> ModelSpec:
        """The model's spec."""
        return self.loaded.spec

    @property
    def id(self) -> str:
        """Name and version, as `encoder:1`."""
        return f"{self.spec.name}:{self.spec.version}"

    def merges(self, variant: Variant) -> bool:
        """Whether rows of several requests may run in one batch: declared or proven to be independent (docs/design.md, 6)."""
        return self._by_rows and (self.spec.rows is Rows.INDEPENDENT or self._proven.get(variant, False))

    def splits(self, variant: Variant) -> bool:
        """Whether a request above the axis' maximum is served in parts. Rows that depend on each other would miss each other."""
        return self._may_split and self.merges(variant)

    def rows_unknown(self, variant: Variant) -> bool:
        """Whether it is still to be proven that rows are independent."""
        return self._by_rows and self.spec.rows is Rows.AUTO and variant not in self._proven

    def rows_proven(self, variant: Variant, independent: bool) -> None:
        """Take note of the proof."""
        self._proven[variant] = independent

    def signature(self, variant: Variant) -> Signature:
        """What the variant's graphs depend on, buckets aside."""
        found = self._signatures.get(variant)
        if found is None:
            found = self._signatures[variant] = self.loaded.signature(self.surroundings.environment, variant)
        return found

    def key(self, variant: Variant, bucket: Bucket) -> GraphKey:
        """Names the graph of a bucket; the same object each time, so that lookups hash it once."""
        found = self._keys.get((variant, bucket))
        if found is None:
            found = self._keys[variant, bucket] = GraphKey(self.signature(variant), bucket)
        return found

    def replace(self, loaded: LoadedModel, config: ModelConfig, surroundings: Surroundings, generation: int) -> list[Signature]:
        """Swap in freshly loaded weights; returns the signatures whose graphs are now stale."""
        stale = list(self._signatures.values())
        self.loaded, self.config, self.surroundings, self.generation = loaded, config, surroundings, generation
        self._signatures, self._keys, self._proven = {}, {}, {}
        return stale

    def mode(self, variant: Variant, now: float) -> ModeState:
        """The mode in force at `now` (seconds since the epoch); an expired one gives way to the configuration's."""
        state = self._modes.get(variant)
        if state is None:
            return self._configured
        if state.until is not None and now >= state.until:
            self._modes.pop(variant, None)
            return self._configured
        return state

    def set_mode(self, variants: tuple[Variant, ...], mode: GraphMode, origin: str, now: float, for_s: float | None) -> ModeState:
        """Set the mode of variants, until `now + for_s` where that is given."""
        state = ModeState(mode, origin, now, None if for_s is None else now + for_s)
        for variant in variants:
            self._modes[variant] = state
        return state

    def other_axes(self, shape: Shape) -> Bucket | None:
        """The bucket of all axes but the batch's."""
        return self.other_ladder.fit(shape)


class Registry:
    """Finds models by name and version; remembers those that are loading or failed to.

    Changed on the event loop; tables of models are replaced, never written to, so that any thread may read them.
    """

    def __init__(self) -> None:
        self._models: dict[str, dict[str, ServedModel]] = {}
        self._others: dict[tuple[str, str], ModelStatus] = {}

    def get(self, name: str, version: str = "") -> ServedModel:
        """The model of this version, or the newest where none is named. Raises UnknownModel, Unavailable."""
        versions = self._models.get(name)
        if versions:
            if not version:
                return next(reversed(versions.values()))
            found = versions.get(version)
            if found is not None:
                return found
        for (other_name, other_version), status in self._others.items():
            if other_name == name and version in ("", other_version):
                raise Unavailable(f"model {name!r} version {other_version!r} is {status.state}: {status.reason}".rstrip(": "))
        if versions:
            raise UnknownModel(f"model {name!r} has no version {version!r}; up are {', '.join(versions)}")
        raise UnknownModel(f"unknown model {name!r}")

    def all(self) -> list[ServedModel]:
        """Every model that is up."""
        return [served for versions in self._models.values() for served in versions.values()]

    def statuses(self) -> list[ModelStatus]:
        """Every known model and version."""
        up = [ModelStatus(s.spec.name, s.spec.version, ModelState.READY, "", s.spec) for s in self.all()]
        return up + list(self._others.values())

    def begin(self, name: str, version: str) -> None:
        """A load starts. Raises Conflict where that version is up or already loading."""
        if version in self._models.get(name, {}):
            raise Conflict(f"model {name!r} version {version!r} is up already; reload it, or load another version")
        status = self._others.get((name, version))
        if status is not None and status.state is ModelState.LOADING:
            raise Conflict(f"model {name!r} version {version!r} is loading already")
        self._others[name, version] = ModelStatus(name, version, ModelState.LOADING, "", None)

    def fail(self, name: str, version: str, reason: str) -> None:
        """A load failed; requests for it are answered with the reason."""
        self._others[name, version] = ModelStatus(name, version, ModelState.UNAVAILABLE, reason, None)

    def add(self, served: ServedModel) -> None:
        """A load is done: requests may come."""
        self._others.pop((served.spec.name, served.spec.version), None)
        versions = {**self._models.get(served.spec.name, {}), served.spec.version: served}
        ordered = sorted(versions.items(), key=lambda item: _version_order(item[0]))
        self._models = {**self._models, served.spec.name: dict(ordered)}

    def withdraw(self, served: ServedModel) -> None:
        """An unload starts: new requests find the model unavailable."""
        self._others[served.spec.name, served.spec.version] = ModelStatus(
            served.spec.name, served.spec.version, ModelState.UNLOADING, "", None
        )
        left = {version: other for version, other in self._models[served.spec.name].items() if other is not served}
        others = {name: versions for name, versions in self._models.items() if name != served.spec.name}
        self._models = {**others, served.spec.name: left} if left else others

    def forget(self, served: ServedModel) -> None:
        """The unload is done."""
        key = (served.spec.name, served.spec.version)
        if key in self._others and self._others[key].state is ModelState.UNLOADING:  # not where it is being loaded again
            del self._others[key]


def _version_order(version: str) -> tuple[int, str]:
    """Numbers by value, other names after them by text: the newest is last."""
    return (int(version), "") if version.isdigit() else (10**9, version)
