"""What was decided of late: how requests ended and what became of graphs, in rings of fixed size.

Readers ask for what is newer than what they know. So a reader that is slow costs nothing, and sees by the numbers what it has missed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from itertools import takewhile
from time import time

from cachepolicy.keys import GraphKey
from cachepolicy.reasons import FallbackReason
from service.snapshot import Decision, Entry, GraphEvent, Happening

KEPT = 16_384  # replayed requests, and as many others: what is eager or failed is not pushed out by a storm of replays
EVENTS = 512
ID = 200  # characters of a request's id that are kept and compared


class Journal:
    """Recent decisions. Safe to use from several threads."""

    def __init__(self, kept: int = KEPT, events: int = EVENTS) -> None:
        self._replayed: deque[Decision] = deque(maxlen=kept)
        self._others: deque[Decision] = deque(maxlen=kept)
        self._events: deque[GraphEvent] = deque(maxlen=events)
        self._latest: dict[tuple[str, FallbackReason], Decision] = {}
        self._number = 0
        self._lock = threading.Lock()

    @property
    def number(self) -> int:
        """Entries so far."""
        return self._number

    @property
    def kept(self) -> int:
        """Decisions that can be looked up now."""
        return len(self._replayed) + len(self._others)

    def decided(self, decision: Decision) -> None:
        """Keep one decision, and number it."""
        with self._lock:
            self._number = decision.number = self._number + 1
            if decision.reason is None and decision.outcome == "replay":
                self._replayed.append(decision)
                return
            self._others.append(decision)
            if decision.reason is not None:
                self._latest[decision.model, decision.reason] = decision

    def happened(self, happening: Happening, key: GraphKey, *, seconds: float = 0.0, size: int = 0, detail: str = "") -> None:
        """Keep what became of a graph."""
        with self._lock:
            self._number += 1
            event = GraphEvent(
                self._number, time(), happening, key.signature.model, key.bucket, key.signature.variant, seconds, size, detail
            )
            self._events.append(event)

    def find(self, name: str) -> list[Decision]:
        """Kept decisions on requests of this id or trace id, oldest first."""
        name = name[:ID]
        with self._lock:
            kept = [*self._replayed, *self._others]
        return sorted((entry for entry in kept if name in (entry.request_id, entry.trace_id)), key=_number)

    def latest(self, model: str, reason: FallbackReason) -> Decision | None:
        """The latest request of a model that ran eagerly for this reason."""
        return self._latest.get((model, reason))

    def since(self, number: int, *, replays: bool = True) -> list[Entry]:
        """Entries after this number, oldest first, as far as they are kept."""
        with self._lock:
            rings: list[Iterable[Entry]] = [reversed(self._others), reversed(self._events)]
            if replays:
                rings.append(reversed(self._replayed))
            found = [entry for ring in rings for entry in takewhile(lambda entry: entry.number > number, ring)]
        return sorted(found, key=_number)

    def events(self) -> list[GraphEvent]:
        """What became of graphs, oldest first."""
        with self._lock:
            return list(self._events)


def _number(entry: Entry) -> int:
    return entry.number
