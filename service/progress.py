"""What is known of graphs that are not resident: on their way, refused, evicted. One short lock, so that the lane can ask."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from cachepolicy.keys import GraphKey, Signature
from cachepolicy.reasons import FallbackReason, RefusalReason


class Stage(StrEnum):
    """Where a key is on its way to serving."""

    PENDING = "pending"
    CAPTURING = "capturing"
    VERIFYING = "verifying"
    SHADOW = "shadow"  # would be captured, if shadow mode did not forbid it
    REFUSED = "refused"
    EVICTED = "evicted"


@dataclass(frozen=True, slots=True)
class Progress:
    """The stage of one key; a refusal has a reason, and the detail that a reader needs."""

    stage: Stage
    reason: RefusalReason | None = None
    detail: str = ""

    def absence(self) -> tuple[FallbackReason, str]:
        """Why a request for this key runs eagerly, and the detail."""
        match self.stage:
            case Stage.PENDING | Stage.CAPTURING | Stage.VERIFYING:
                return FallbackReason.CAPTURE_PENDING, str(self.stage)
            case Stage.SHADOW:
                return FallbackReason.NOT_CAPTURED, "captures only in shadow"
            case Stage.REFUSED:
                return FallbackReason.REFUSED, f"{self.reason}: {self.detail}" if self.detail else str(self.reason)
            case Stage.EVICTED:
                return FallbackReason.EVICTED, ""


UNKNOWN = (FallbackReason.NOT_CAPTURED, "")


class ProgressTable:
    """Progress per key. Safe to use from several threads."""

    def __init__(self) -> None:
        self._table: dict[GraphKey, Progress] = {}
        self._lock = threading.Lock()

    def get(self, key: GraphKey) -> Progress | None:
        """What is known of a key."""
        return self._table.get(key)

    def note(self, key: GraphKey, progress: Progress) -> None:
        """The key is at a new stage."""
        with self._lock:
            self._table[key] = progress

    def drop(self, key: GraphKey) -> None:
        """The key serves, or nothing is to be said of it any more."""
        with self._lock:
            self._table.pop(key, None)

    def drop_pending(self, keys: Iterable[GraphKey]) -> None:
        """Forget those that were announced and not begun."""
        with self._lock:
            for key in keys:
                if self._table.get(key) == Progress(Stage.PENDING):
                    del self._table[key]

    def forget(self, signatures: Iterable[Signature]) -> None:
        """Forget all keys of these signatures."""
        gone = set(signatures)
        with self._lock:
            self._table = {key: progress for key, progress in self._table.items() if key.signature not in gone}

    def all(self) -> dict[GraphKey, Progress]:
        """Everything known now."""
        with self._lock:
            return dict(self._table)
