"""The worker's way to graphs: what requests ask of the cache's keeper, what they are counted by, and what operators want of it.

One thread and one capture at a time. Requests never wait for it: they ask `absence`, which reads a table, and `count` a run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from cachepolicy.cache import GraphCache, GraphEntry
from cachepolicy.capture import Capture, CaptureAdmission
from cachepolicy.costs import CostTable
from cachepolicy.keys import GraphKey, Signature
from cachepolicy.reasons import FallbackReason, RefusalReason
from service.errors import CaptureRefused, DeviceLost
from service.following import Follower
from service.jobs import JobThread, Turn
from service.lane import BackgroundLane
from service.memory import Ledger
from service.messages import BudgetChange
from service.models.spec import Shape
from service.progress import UNKNOWN, Progress, Stage
from service.recorder import Graph, Recorder
from service.review import Review
from service.upkeep import Promise, Upkeep

if TYPE_CHECKING:
    from service.registry import ServedModel
    from service.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


class Capturer:
    """The only one who has graphs recorded and destroyed."""

    def __init__(
        self,
        context: Callable[[], AbstractContextManager[None]],
        cache: GraphCache,
        recorder: Recorder,
        ledger: Ledger,
        admission: CaptureAdmission,
        costs: CostTable,
        metrics: Metrics,
        idle: Callable[[], bool],
        lane: BackgroundLane,
        *,
        background: bool,
        shadow: bool,
    ) -> None:
        """`context` is entered by the thread; `idle` tells whether no request waits or runs."""
        self.cache = cache
        self.ledger = ledger
        self._recorder = recorder
        self._progress = recorder.progress
        self._costs = costs
        self._idle = idle
        self._warmed_up: set[GraphKey] = set()  # buckets that ran eagerly before
        self._thread = JobThread(context)
        self._upkeep = Upkeep(self._thread, cache, recorder, ledger, admission, costs)
        self._follower = Follower(
            self._thread, self._upkeep, cache, recorder, admission, costs, metrics, lane, background=background, shadow=shadow
        )
        self._review = Review(cache, recorder, costs)
        lane.between = self._thread.make_way
        self._thread.look_around = self._look_around

    def on_device_lost(self, tell: Callable[[DeviceLost], None]) -> None:
        """Call `tell` where a capture, a proof or a measurement loses the device."""
        self._thread.on_device_lost = tell

    # -- asked on the lane's thread

    def absence(self, key: GraphKey) -> tuple[FallbackReason, str]:
        """Why this key has no resident graph, and the detail."""
        progress = self._progress.get(key)
        if progress is None and not self.cache.budget:
            return FallbackReason.REFUSED, f"{RefusalReason.MEMORY_BUDGET}: the budget is 0"
        return UNKNOWN if progress is None else progress.absence()

    def pays(self, entry: GraphEntry, key: GraphKey) -> bool:
        """Whether a run of the bucket of `key` is to be replayed by this graph. One of a larger bucket has to be faster than eager."""
        bucket = entry.key.bucket
        if bucket == key.bucket or entry.pinned or (isinstance(entry.payload, Graph) and entry.payload.forced):
            return True
        eager, replay = self._costs.eager(key.signature, key.bucket), self._costs.replay(key.signature, bucket)
        return eager is None or replay is None or replay < eager

    def count(self, key: GraphKey, shape: Shape, serving: GraphKey | None) -> None:
        """Count a run for the policy; wakes the thread where a decision is due."""
        self._follower.count(key, shape, serving)

    def observe_eager(self, key: GraphKey, seconds: float) -> None:
        """An eager run was timed. A bucket's first one tells nothing: it builds what all later ones find."""
        if key in self._warmed_up:
            self._costs.observe_eager(key.signature, key.bucket, seconds)
        elif self._upkeep.served(key.signature) is not None:
            self._warmed_up.add(key)

    def observe_replay(self, key: GraphKey, seconds: float) -> None:
        """A replay was timed."""
        self._costs.observe_replay(key.signature, key.bucket, seconds)

    # -- asked by the worker

    def open(self) -> None:
        """Have the thread make itself ready, which takes seconds: the models are loaded, and whatever comes next is a capture."""
        self._thread.submit(lambda: None)

    def introduce(self, served: ServedModel) -> None:
        """A model is up, or its weights were replaced: its signatures may be captured from now on."""
        self._upkeep.introduce(served)

    def foresee(self, promises: Mapping[Signature, Promise]) -> Future[list[Capture]]:
        """What the policy would capture now for traffic that is promised; counts of these signatures begin anew. Captures nothing."""
        return self._thread.submit(partial(self._follower.foresee, promises), Turn.ASKED)

    def warm(self, key: GraphKey, *, force: bool, known: bool = False) -> Future[GraphEntry]:
        """Capture one bucket as soon as possible; `force` forgets an earlier refusal and skips the profit test, never the proof.

        One that is `known` to pay, from measurements of others, is not measured either.

        The future raises CaptureRefused, NotYetProvable.
        """
        progress = self._progress.get(key)
        if self.cache.get(key) is None and (progress is None or progress.stage in (Stage.EVICTED, Stage.SHADOW) or force):
            self._progress.note(key, Progress(Stage.PENDING))
        return self._thread.submit(partial(self._upkeep.warm, key, force=force, known=known), Turn.ASKED)

    def forget(self, signatures: list[Signature]) -> None:
        """Destroy all graphs of these signatures and all memory of them, and give up the one in the making; returns when that is done.

        The caller has made sure that no batch of theirs will run any more.
        """
        self._thread.submit(partial(self._upkeep.forget, signatures)).result()
        wanted = set(signatures)
        self._warmed_up = {key for key in list(self._warmed_up) if key.signature not in wanted}

    def evict(self, keys: list[GraphKey]) -> Future[int]:
        """Take graphs out of service and destroy them; pinned ones stay. The future says how many went.

        Where the largest of an arena went and others stay, they are recorded again after that, so that its memory comes back.
        """
        return self._thread.submit(partial(self._upkeep.evict, keys))

    def resize(self, budget: int) -> Future[BudgetChange]:
        """Change the cache's budget and destroy what no longer fits."""
        return self._thread.submit(partial(self._upkeep.resize, budget))

    def discard(self, entry: GraphEntry, refusal: CaptureRefused | None = None) -> None:
        """A replay failed, or was found wrong: take its graph out of service, and refuse it where it was wrong. Does not wait."""
        self._thread.put(partial(self._upkeep.discard, entry, refusal), Turn.AT_ONCE)

    def progress(self) -> dict[GraphKey, Progress]:
        """All keys that are not resident but known."""
        return self._progress.all()

    def sizes(self, signature: Signature) -> tuple[dict[tuple[tuple[str, int], ...], int], float]:
        """Runs per exact size that were counted for a signature, and the seconds since it came up."""
        return self._recorder.traffic.histogram(signature), self._upkeep.up_s(signature)

    def histograms(self) -> dict[Signature, dict[tuple[tuple[str, int], ...], int]]:
        """Runs per exact size of every signature."""
        return self._recorder.traffic.histograms()

    def close(self) -> None:
        """Give up the capture in hand and whatever else is queued, and destroy all graphs."""
        self._thread.close(self._upkeep.forget_all)

    # -- the capturer's thread

    def _look_around(self) -> None:
        """Nothing to do: let the policy reconsider, and measure what serves."""
        self._follower.look_around()
        if self._idle() and (entry := self._review.next()) is not None and (found := self._upkeep.served(entry.key.signature)):
            with self._thread.so_long_as(lambda: self.cache.get(entry.key) is entry):
                refusal = self._review.judge(entry, *found)
            if refusal is not None:
                log.warning("%s is retired: %s", entry.key, refusal)
                self._upkeep.discard(entry, refusal)
