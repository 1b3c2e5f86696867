"""Acting on a running worker: models, graphs, modes, budget. Called on the event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from time import monotonic, time
from typing import TYPE_CHECKING
from weakref import ref

from cachepolicy.buckets import Bucket
from cachepolicy.cache import GraphCache, GraphEntry
from cachepolicy.costs import CostTable
from cachepolicy.keys import Signature
from cachepolicy.reasons import RefusalReason, hint_for
from service import garbage
from service.capturer import Capturer
from service.choices import Above
from service.errors import BadInput, Conflict, NotSupported, Unavailable
from service.lane import Lane
from service.messages import BudgetChange, Explanation, GraphInfo, GraphMode, ModelState, ModelStatus, ModeState, Parameter, Path, Plan
from service.models.spec import Shape, Variant
from service.models.values import concrete
from service.planner import Planner
from service.progress import Stage
from service.registry import Registry, ServedModel, Surroundings
from service.routing import Replay, Router

if TYPE_CHECKING:
    from service.config import ModelConfig
    from service.models.loaded import LoadedModel

Load = Callable[["ModelConfig", int], "LoadedModel"]
ParseModel = Callable[[str], "ModelConfig"]


_FOR_WANT_OF_BYTES = (RefusalReason.MEMORY_BUDGET, RefusalReason.OUT_OF_MEMORY)  # a plan has bytes of its own


class Admin:
    """Everything an operator can do; `load` and `parse` come from the wiring, since they need torch and the configuration's folder."""

    def __init__(
        self,
        registry: Registry,
        router: Router,
        cache: GraphCache,
        capturer: Capturer,
        costs: CostTable,
        lane: Lane,
        surroundings: Callable[[], Surroundings],
        load: Load,
        parse: ParseModel,
        padding: Callable[[str, Bucket], float],
        largest: int,
        min_gain: float,
    ) -> None:
        """`padding` tells the padded per real elements of the replays of a model's bucket so far; `largest` bounds a request's bytes.

        `min_gain` is the share of itself that a replay has to save.
        """
        self._registry = registry
        self._router = router
        self._cache = cache
        self._capturer = capturer
        self._costs = costs
        self._lane = lane
        self._surroundings = surroundings
        self._load = load
        self._parse = parse
        self._padding = padding
        self._largest = largest
        self._min_gain = min_gain
        self.on_loaded: Callable[[ServedModel], None] = lambda _: None  # on an operator's word, or its weights were reloaded
        self.on_unloaded: Callable[[str], None] = lambda _: None  # the last version of this model is gone
        self._changes = asyncio.Lock()  # one load, unload or reload at a time

    # -- models

    async def load(self, text: str) -> ModelStatus:
        """Load a model from its configuration (YAML of one item of `models`). Raises ConfigError, Conflict."""
        status = await self.load_config(self._parse(text))
        self.on_loaded(self._registry.get(status.name, status.version))
        return status

    async def load_config(self, config: ModelConfig) -> ModelStatus:
        """Load a model and put it up."""
        self._registry.begin(config.name, config.version)
        async with self._changes:
            try:
                loaded = await asyncio.to_thread(self._load, config, 1)
            except BaseException as error:
                self._registry.fail(config.name, config.version, str(error) or type(error).__name__)
                raise
            served = ServedModel(config, loaded, self._surroundings(), 1)
            self._capturer.introduce(served)
            self._registry.add(served)
        self._want_all(served, served.spec.all_variants())
        return ModelStatus(config.name, config.version, ModelState.READY, "", served.spec)

    async def unload(self, model: str, version: str = "") -> None:
        """Take a model down: it takes no more requests, those accepted before are answered, then its graphs are destroyed."""
        async with self._changes:
            garbage.let_go(await self._take_down(model, version))

    async def _take_down(self, model: str, version: str) -> ref[object]:
        served = self._registry.get(model, version)
        self._registry.withdraw(served)
        await asyncio.to_thread(self._settle, [served.signature(variant) for variant in served.spec.all_variants()])
        self._registry.forget(served)
        if all(other.spec.name != served.spec.name for other in self._registry.all()):
            self.on_unloaded(served.spec.name)
        return ref(served.loaded.module)

    async def reload(self, model: str, version: str = "", weights: str = "") -> ModelStatus:
        """Load a model's weights anew (from another file where `weights` names one) and swap them in.

        After this returns, no answer of the old weights is given. A reload that fails leaves the old version serving.
        """
        async with self._changes:
            served = self._registry.get(model, version)
            config = served.config.model_copy(update={"weights": weights}) if weights else served.config
            generation = served.generation + 1
            loaded = await asyncio.to_thread(self._load, config, generation)
            if loaded.spec != served.spec:
                raise Conflict(f"model {served.id}: the reloaded model's inputs, outputs or axes differ; unload it and load the new one")
            before: ref[object] = ref(served.loaded.module)
            async with served.wholeness.changed():
                stale = served.replace(loaded, config, self._surroundings(), generation)
            self._capturer.introduce(served)
            await asyncio.to_thread(self._settle, stale)
            garbage.let_go(before)
            self._want_all(served, served.spec.all_variants())
        self.on_loaded(served)
        return ModelStatus(served.spec.name, served.spec.version, ModelState.READY, "", served.spec)

    def fresh(self, served: ServedModel) -> LoadedModel:
        """Another instance of a model, with weights and state as after its load; nothing of the worker touches it."""
        return served.loaded.fresh()

    # -- graphs

    def graphs(self, model: str = "") -> list[GraphInfo]:
        """Resident graphs and all keys on their way or refused."""
        now = monotonic()
        wanted = {
            served.signature(variant): served
            for served in self._registry.all()
            if model in ("", served.spec.name)
            for variant in served.spec.all_variants()
        }
        found = [self._serving(wanted[entry.key.signature], entry, now) for entry in self._cache if entry.key.signature in wanted]
        for key, progress in self._capturer.progress().items():
            if key.signature in wanted and progress.stage is not Stage.EVICTED:
                spec = wanted[key.signature].spec
                reason = f"{progress.reason}: {progress.detail}".rstrip(": ") if progress.reason else ""
                found.append(GraphInfo(spec.name, spec.version, key.signature.variant, key.bucket, str(progress.stage), reason=reason))
        if model and not found:
            self._registry.get(model)
        return sorted(found, key=lambda g: (g.model, g.version, g.variant, g.bucket.volume))

    def explain(self, model: str, version: str, shape: Shape, parameters: Mapping[str, Parameter]) -> Explanation:
        """What would happen to a request of this shape now. Changes nothing."""
        served, variant = self._find(model, version, parameters)
        _check_shape(served, shape)
        nbytes = sum(spec.datatype.itemsize * math.prod(concrete(spec.shape, shape)) for spec in served.spec.requested_inputs)
        if nbytes > self._largest:
            raise BadInput("", f"a request of this shape has {nbytes} bytes, above worker.limits.message, {self._largest}")
        rows = shape.get(served.spec.batch_axis, 1)
        if served.splits(variant) and rows > served.max_rows:
            shape = {**shape, served.spec.batch_axis: served.max_rows}
        route = self._router.explain(served, variant, shape)
        mode = served.mode(variant, time())
        signature = served.signature(variant)
        name, number = served.spec.name, served.spec.version
        if isinstance(route, Replay):
            bucket = route.entry.key.bucket
            real = 1
            for axis, _ in bucket.sizes:
                real *= shape[axis]
            predicted = self._costs.replay(signature, bucket)
            return Explanation(name, number, Path.REPLAY, None, "", bucket, bucket.padding_ratio(real), predicted, "", mode)
        fit = served.ladder.fit(shape)
        predicted = None if fit is None else self._costs.eager(signature, fit)
        hint = hint_for(route.reason, route.detail)
        return Explanation(name, number, Path.EAGER, route.reason, route.detail, route.bucket, 0.0, predicted, hint, mode)

    async def warm(self, model: str, version: str, shape: Shape, parameters: Mapping[str, Parameter], force: bool) -> GraphInfo:
        """Capture the bucket that covers `shape`, and wait for it. Raises CaptureRefused, BadInput where no bucket covers it."""
        served, variant = self._find(model, version, parameters)
        key = served.key(variant, self._bucket(served, shape))
        await asyncio.wrap_future(self._capturer.warm(key, force=force))
        entry = self._cache.get(key)
        if entry is None:
            raise Unavailable(f"{key} was captured and evicted again at once: raise the budget")
        return self._serving(served, entry, monotonic())

    async def evict(self, model: str, version: str, shape: Shape | None, parameters: Mapping[str, Parameter]) -> int:
        """Evict one bucket's graph, or all of a model's variant where no shape is given. Pinned ones stay. Returns how many went."""
        served, variant = self._find(model, version, parameters)
        buckets = served.ladder.buckets() if shape is None else [self._bucket(served, shape)]  # resident or about to be
        return await asyncio.wrap_future(self._capturer.evict([served.key(variant, bucket) for bucket in buckets]))

    def pin(self, model: str, version: str, shape: Shape, parameters: Mapping[str, Parameter], pinned: bool) -> GraphInfo:
        """Protect a resident graph from eviction, or stop doing so. Raises Conflict where it is not resident."""
        served, variant = self._find(model, version, parameters)
        key = served.key(variant, self._bucket(served, shape))
        if not self._cache.pin(key, pinned):
            raise Conflict(f"{key} is not resident; warm it first")
        entry = self._cache.get(key)
        assert entry is not None
        return self._serving(served, entry, monotonic())

    # -- mode and budget

    def set_mode(self, model: str, version: str, parameters: Mapping[str, Parameter], mode: str, for_s: float | None) -> ModeState:
        """Switch graphs for a model, or for the one variant that `parameters` name, from the next batch on.

        Raises NotSupported for a mode that is not built, BadInput for one that does not exist.
        """
        served = self._registry.get(model, version)
        wanted = parse_mode(mode)
        if for_s is not None and not 0 < for_s < math.inf:
            raise BadInput("", f"a mode's duration must be positive and finite, got {for_s} s")
        variants = _matching(served, parameters)
        state = served.set_mode(variants, wanted, "rpc", time(), for_s)
        self._want_all(served, variants)
        return state

    async def set_budget(self, budget: int) -> BudgetChange:
        """Resize the cache; returns after what no longer fits was destroyed."""
        if budget < 0:
            raise BadInput("", f"the budget must not be negative, got {budget}")
        if budget > (capacity := self._capturer.ledger.capacity):
            raise BadInput("", f"the budget must not exceed the device's memory of {capacity} bytes, got {budget}")
        return await asyncio.wrap_future(self._capturer.resize(budget))

    def plan(
        self, model: str, version: str, parameters: Mapping[str, Parameter], budget: int | None, graphs: int, session_bytes: int
    ) -> Plan:
        """The best buckets for the traffic of a variant since it came up; `budget` None means the cache's, `graphs` 0 any number.

        Raises Conflict where nothing was measured yet.
        """
        served, variant = self._find(model, version, parameters)
        signature = served.signature(variant)
        runs, seconds = self._capturer.sizes(signature)
        if not runs or self._costs.eager(signature, Bucket(next(iter(runs)))) is None:
            raise Conflict(f"no traffic of {served.id} was measured yet; send some, or replay a trace")
        refused = [
            key.bucket
            for key, progress in self._capturer.progress().items()
            if key.signature == signature and progress.stage is Stage.REFUSED and progress.reason not in _FOR_WANT_OF_BYTES
        ]
        planner = Planner(served.spec, signature, self._costs, runs, seconds, self._min_gain, refused)
        return planner.plan(self._cache.budget if budget is None else budget, graphs or len(runs), session_bytes)

    # -- helpers

    def _serving(self, served: ServedModel, entry: GraphEntry, now: float) -> GraphInfo:
        return GraphInfo(
            model=served.spec.name,
            version=served.spec.version,
            variant=entry.key.signature.variant,
            bucket=entry.key.bucket,
            state="serving",
            key=entry.key.fingerprint(),
            hits=entry.hits,
            saved_s=entry.saved_s,
            bytes=entry.bytes,
            arena=entry.arena,
            last_used_s=now - entry.last_used if entry.hits else None,
            pinned=entry.pinned,
            padding_ratio=self._padding(served.spec.name, entry.key.bucket),
        )

    def _find(self, model: str, version: str, parameters: Mapping[str, Parameter]) -> tuple[ServedModel, Variant]:
        served = self._registry.get(model, version)
        return served, served.spec.variant_of(parameters)

    def _bucket(self, served: ServedModel, shape: Shape) -> Bucket:
        _check_shape(served, shape)
        bucket = served.ladder.fit(shape)
        if bucket is None:
            raise BadInput("", f"no bucket of {served.id} covers {', '.join(f'{axis}={size}' for axis, size in shape.items())}")
        return bucket

    def _want_all(self, served: ServedModel, variants: tuple[Variant, ...]) -> None:
        """Mode full: every bucket is captured, largest first (an arena gains from that)."""
        for variant in variants:
            if served.mode(variant, time()).mode is GraphMode.FULL:
                for bucket in reversed(list(served.ladder.buckets())):
                    self._capturer.warm(served.key(variant, bucket), force=True)

    def _settle(self, stale: list[Signature]) -> None:
        """Destroy the graphs of signatures that no new batch will name."""
        self._lane.barrier()  # a batch that was routed before the change has ended after this
        self._capturer.forget(stale)


def parse_mode(text: str) -> GraphMode:
    """The mode of this name. Raises NotSupported for one that is planned, BadInput for one that does not exist."""
    if text in _PLANNED_MODES:
        raise NotSupported(f"mode {text!r} is not built yet; use {', '.join(GraphMode)}")
    try:
        return GraphMode(text)
    except ValueError:
        raise BadInput("", f"mode {text!r} does not exist; use {', '.join(GraphMode)}") from None


_PLANNED_MODES = ("piecewise", "full_decode_only", "full_and_piecewise")


def _matching(served: ServedModel, parameters: Mapping[str, Parameter]) -> tuple[Variant, ...]:
    """The variants whose choices agree with the named ones; all of them where none is named."""
    declared = dict(served.spec.variants)
    for name, value in parameters.items():
        if str(value) not in declared.get(name, ()):
            raise BadInput("", f"{served.id} has no variant {name}={value}")
    wanted = {(name, str(value)) for name, value in parameters.items()}
    return tuple(variant for variant in served.spec.all_variants() if wanted <= set(variant))


def _check_shape(served: ServedModel, shape: Shape) -> None:
    """Every axis has to be named, as a request has them all. Raises BadInput."""
    names = [axis.name for axis in served.spec.axes]
    for name, size in shape.items():
        if name not in names:
            raise BadInput("", f"axis {name!r}: unknown; {served.id} has {', '.join(names) or 'none'}")
        if size < 1:
            raise BadInput("", f"axis {name!r}: size must be positive, got {size}")
    for axis in served.spec.axes:
        if axis.name not in shape:
            raise BadInput("", f"no size for axis {axis.name!r}; {served.id} has {', '.join(names)}")
        if axis.above is Above.REJECT and shape[axis.name] > axis.max:
            raise BadInput("", f"axis {axis.name!r}: {shape[axis.name]} is above its maximum {axis.max}, such requests are rejected")
