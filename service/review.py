"""Graphs that serve are measured again when the device is idle, and lose their place where eager has become faster."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING

from cachepolicy.cache import GraphCache, GraphEntry
from cachepolicy.costs import CostTable
from cachepolicy.reasons import RefusalReason
from service.errors import CaptureRefused, Conflict, NotYetProvable
from service.measuring import SIZES, Standings
from service.models.spec import Variant
from service.recorder import Graph, Recorder

if TYPE_CHECKING:
    from service.registry import ServedModel

log = logging.getLogger(__name__)


class Review:
    """Judges resident graphs again, one at a time, in the capturer's thread."""

    def __init__(self, cache: GraphCache, recorder: Recorder, costs: CostTable) -> None:
        self._cache = cache
        self._recorder = recorder
        self._costs = costs
        self._standings = Standings()

    def next(self) -> GraphEntry | None:
        """The graph to measure now, if it is time for one."""
        return self._standings.next(self._candidates(), monotonic())

    def judge(self, entry: GraphEntry, model: ServedModel, variant: Variant) -> CaptureRefused | None:
        """Measure one graph; returns the refusal to retire it by, where it has kept losing."""
        graph = entry.payload
        assert isinstance(graph, Graph)
        sizes = [] if entry.exact_only else self._recorder.replayed.shapes(entry.key, SIZES)
        try:
            figures = self._recorder.measure(model.loaded, variant, entry.key, graph.recording, graph.padding, sizes)
        except (CaptureRefused, NotYetProvable, Conflict) as error:
            log.info("%s could not be measured again: %s", entry.key, error)
            self._standings.postpone(entry, monotonic())
            return None
        if not self._standings.note(entry, figures, monotonic()):
            return None
        return CaptureRefused(RefusalReason.UNPROFITABLE, str(figures))

    def _candidates(self) -> Iterator[tuple[GraphEntry, bool]]:
        """Resident graphs that have to pay, and whether what serving has measured of them looks slow."""
        for entry in self._cache:
            if not entry.pinned and isinstance(entry.payload, Graph) and not entry.payload.forced:
                eager = self._costs.eager(entry.key.signature, entry.key.bucket)
                replay = self._costs.replay(entry.key.signature, entry.key.bucket)
                yield entry, eager is not None and replay is not None and replay > eager
