"""Carries out what the policy decides and what is asked for, and remembers what came of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from cachepolicy.buckets import Bucket
from cachepolicy.cache import GraphCache, GraphEntry
from cachepolicy.capture import CaptureAdmission
from cachepolicy.costs import CostTable
from cachepolicy.keys import GraphKey, Signature
from cachepolicy.reasons import RefusalReason
from service.errors import CaptureRefused, Conflict, NotYetProvable
from service.jobs import SUPERSEDED, JobThread, Turn
from service.memory import Ledger
from service.messages import BudgetChange
from service.models.spec import Variant
from service.progress import Progress, Stage
from service.recorder import Graph, Recorder
from service.telemetry.tracing import Value

if TYPE_CHECKING:
    from service.registry import ServedModel

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Promise:
    """What others tell of a signature: runs that an hour brings by ladder bucket, and costs as `CostTable.load` takes them."""

    runs: Mapping[Bucket, float] = field(default_factory=dict)
    costs: Mapping[Bucket, tuple[float, float, float, int, int]] = field(default_factory=dict)


class Upkeep:
    """Which models may be captured, which graphs are refused, and the arenas. In the capturer's thread, where not said otherwise."""

    def __init__(
        self, thread: JobThread, cache: GraphCache, recorder: Recorder, ledger: Ledger, admission: CaptureAdmission, costs: CostTable
    ) -> None:
        self._thread = thread
        self._cache = cache
        self._recorder = recorder
        self._progress = recorder.progress
        self._ledger = ledger
        self._admission = admission
        self._costs = costs
        self._served: dict[Signature, tuple[ServedModel, Variant]] = {}
        self._since: dict[Signature, float] = {}
        self._lock = threading.Lock()  # for changes of the two tables above
        self._loose: set[str] = set()  # arenas that take more than their graphs need
        self._returning: dict[GraphKey, GraphEntry] = {}  # dropped with their arena, and to be made anew

    # -- models; known to any thread

    def introduce(self, served: ServedModel) -> None:
        """A model is up, or its weights were replaced: its signatures may be captured from now on."""
        with self._lock:
            for variant in served.spec.all_variants():
                signature = served.signature(variant)
                self._admission.introduce(signature, served.ladder, monotonic())
                self._served[signature] = (served, variant)
                self._since[signature] = monotonic()

    def served(self, signature: Signature) -> tuple[ServedModel, Variant] | None:
        """The model behind a signature; None where it was unloaded or reloaded."""
        return self._served.get(signature)

    def up_s(self, signature: Signature) -> float:
        """Seconds since it came up."""
        return monotonic() - self._since.get(signature, monotonic())

    def promise(self, promises: Mapping[Signature, Promise]) -> None:
        """Traffic is promised to these; what was counted of them is forgotten."""
        with self._lock:
            for signature, promise in promises.items():
                found = self._served.get(signature)
                if found is not None:
                    self._costs.load(signature, promise.costs)
                    self._admission.introduce(signature, found[0].ladder, monotonic(), promise.runs)

    def forget(self, signatures: list[Signature]) -> None:
        """Destroy all graphs of these signatures and all memory of them."""
        gone = [entry for signature in signatures for entry in self._cache.drop(signature)]
        self._recorder.destroy(gone)
        with self._lock:
            for signature in signatures:
                self._served.pop(signature, None)
                self._since.pop(signature, None)
                self._admission.forget(signature)
        self._recorder.forget(signatures)

    def forget_all(self) -> None:
        """No model is served any more."""
        self.forget(list(self._served))

    # -- graphs

    def warm(self, key: GraphKey, *, force: bool, known: bool) -> GraphEntry:
        """A graph that somebody asked for. Raises as `capture`, for what was refused before as well."""
        progress = self._progress.get(key)
        if progress is not None and progress.stage is Stage.REFUSED and not force:
            raise CaptureRefused(progress.reason or RefusalReason.CAPTURE_ERROR, progress.detail)
        entry = self.capture(key, {"graphcache.cause": "asked for", "graphcache.forced": force}, force=force, known=known)
        if force:
            self._admission.pardon(key)
        return entry

    def capture(
        self,
        key: GraphKey,
        why: Mapping[str, Value],
        *,
        force: bool = False,
        known: bool = False,
        wanted: Callable[[], bool] = lambda: True,
    ) -> GraphEntry:
        """Have a graph made, as long as it is wanted. Raises what the recorder raises, and remembers refusals."""
        found = self._served.get(key.signature)
        if found is None:
            self._progress.drop(key)
            raise Conflict(SUPERSEDED)
        try:
            with self._thread.so_long_as(lambda: key.signature in self._served and wanted()):
                return self._recorder.capture(*found, key, why, force=force, known=known)
        except CaptureRefused as refusal:
            if refusal.reason is RefusalReason.UNSUPPORTED_MODE:  # the mode's business, and over as soon as that changes
                self._progress.drop(key)
            else:
                self._refuse(key, refusal)
            raise
        except (NotYetProvable, Conflict):
            self._progress.drop(key)
            raise

    def evict(self, keys: list[GraphKey]) -> int:
        """Take those that are resident out of service, and have their arenas made anew where that gives memory back. How many went.

        One that was to return with its arena counts as well, and does not return.
        """
        stay_away = [key for key in keys if self._returning.pop(key, None) is not None]
        entries = [entry for key in keys if (entry := self._cache.get(key)) is not None]
        gone = [entry for entry in entries if self._recorder.evict(entry.key, "asked for")]
        for arena in {entry.arena for entry in gone if entry.arena}:
            top = max(entry.key.bucket.volume for entry in gone if entry.arena == arena)
            left = [entry.key.bucket.volume for entry in self._cache if entry.arena == arena]
            if left and top > max(left) and arena not in self._loose:
                self._loose.add(arena)
                self._thread.put(partial(self._tighten, arena), Turn.ASKED)
        return len(gone) + len(stay_away)

    def _tighten(self, arena: str) -> None:
        if arena in self._loose:  # else it was made anew meanwhile
            self.rebuild({arena})

    def rebuild(self, arenas: set[str]) -> bool:
        """Drop arenas, then record their graphs again; requests run eagerly meanwhile (docs/design.md, 3). Whether that was possible."""
        members = [entry for entry in self._cache if entry.arena and entry.arena in arenas]
        if any(entry.pinned for entry in members):  # the arena would not empty
            return False
        self._loose -= arenas
        why = "its arena is made anew"
        dropped = [entry for entry in members if self._recorder.evict(entry.key, why)]
        self._returning = {entry.key: entry for entry in sorted(dropped, key=lambda entry: -entry.key.bucket.volume)}
        while self._returning:
            key, entry = next(iter(self._returning.items()))
            try:
                forced = isinstance(entry.payload, Graph) and entry.payload.forced
                wanted = partial(self._returning.__contains__, key)
                self.capture(key, {"graphcache.cause": why}, force=forced, known=True, wanted=wanted)
            except (CaptureRefused, NotYetProvable, Conflict) as refusal:
                log.warning("%s is not captured again: %s", key, refusal)
            self._returning.pop(key, None)
        return True

    def resize(self, budget: int) -> BudgetChange:
        """Change the cache's budget and destroy what no longer fits."""
        used, kept = self._cache.used, self._ledger.reusable
        self._recorder.resize(budget)
        kept_now = self._ledger.reusable
        return BudgetChange(self._cache.budget, self._cache.used, max(0, used - self._cache.used - max(0, kept_now - kept)), kept_now)

    def discard(self, entry: GraphEntry, refusal: CaptureRefused | None) -> None:
        """A replay failed, or was found wrong or slow: take its graph out of service; refuse it where it was not the replay that failed."""
        if self._cache.get(entry.key) is entry:
            self._cache.pin(entry.key, pinned=False)
            self._recorder.evict(entry.key, "its replay failed" if refusal is None else str(refusal))
            if refusal is not None:
                self._refuse(entry.key, refusal)

    def _refuse(self, key: GraphKey, refusal: CaptureRefused) -> None:
        if refusal.reason is RefusalReason.UNPROFITABLE:  # the refusal keeps it away while that lasts; then it is to be measured anew
            self._costs.doubt(key.signature, key.bucket)
        self._progress.note(key, Progress(Stage.REFUSED, refusal.reason, refusal.detail))
        self._admission.refuse(key, refusal.reason, monotonic())
