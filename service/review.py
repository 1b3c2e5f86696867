"""Graphs that serve are measured again when the device is idle, and lose their place where eager has become faster."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from time import monotonic
from typing import TYPE_CHECKING

from cachepolicy.cache import GraphCache, GraphEntry
from cachepolicy.costs import CostTable
from cachepolicy.keys import Signature
from cachepolicy.reasons import RefusalReason
from service.errors import CaptureRefused, NotYetProvable
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

    def step(self, served: Mapping[Signature, tuple[ServedModel, Variant]]) -> tuple[GraphEntry, CaptureRefused] | None:
        """Measure one graph, if it is time; returns it, with the refusal to retire it by, where it has kept losing."""
        entry = self._standings.next(self._candidates(), monotonic())
        found = None if entry is None else served.get(entry.key.signature)
        if entry is None or found is None:
            return None
        (model, variant), graph = found, entry.payload
        assert isinstance(graph, Graph)
        sizes = [] if entry.exact_only else self._recorder.replayed.shapes(entry.key, SIZES)
        try:
            figures = self._recorder.measure(model.loaded, variant, entry.key, graph.recording, graph.padding, sizes)
        except (CaptureRefused, NotYetProvable) as error:
            log.info("%s could not be measured again: %s", entry.key, error)
            self._standings.postpone(entry, monotonic())
            return None
        if not self._standings.note(entry, figures, monotonic()):
            return None
        return entry, CaptureRefused(RefusalReason.UNPROFITABLE, str(figures))

    def _candidates(self) -> Iterator[tuple[GraphEntry, bool]]:
        """Resident graphs that have to pay, and whether what serving has measured of them looks slow."""
        for entry in self._cache:
            if not entry.pinned and isinstance(entry.payload, Graph) and not entry.payload.forced:
                eager = self._costs.eager(entry.key.signature, entry.key.bucket)
                replay = self._costs.replay(entry.key.signature, entry.key.bucket)
                yield entry, eager is not None and replay is not None and replay > eager
