"""Admission of captures: which graphs are worth recording now, and what has to go first.

The request path only counts (`count`, constant time). Whatever takes thought happens in `decide`, which the capturer's thread calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cachepolicy.buckets import Bucket
from cachepolicy.cache import GraphCache
from cachepolicy.keys import GraphKey, Signature
from cachepolicy.reasons import RefusalReason


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet: traffic has lost `lost_s` seconds for want of this graph, and `needed_s` would pay for it."""

    lost_s: float
    needed_s: float


@dataclass(frozen=True, slots=True)
class Capture:
    """Record this graph; it is expected to save `gain_s` seconds, net of its capture, over the planning horizon."""

    key: GraphKey
    gain_s: float


@dataclass(frozen=True, slots=True)
class Refuse:
    """This graph may not exist for now."""

    reason: RefusalReason


@dataclass(frozen=True, slots=True)
class Evict:
    """Destroy this graph before going on with the plan."""

    key: GraphKey


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Drop the signature's arena and record its resident graphs again, so that memory above the largest of them comes back."""

    signature: Signature


Decision = Wait | Capture | Refuse
Action = Evict | Rebuild | Capture


class CaptureAdmission(Protocol):
    """Decides which graphs come and go. Times are seconds of one monotonic clock."""

    def count(self, signature: Signature, fit: Bucket, served: Bucket | None, now: float, steps: int = 1) -> bool:
        """Note `steps` runs whose ladder bucket is `fit`, replayed at `served` or run eagerly (None).

        Constant time, for the request path. True: enough was lost since the last `decide` that the capturer should call it.
        """
        ...

    def decide(self, cache: GraphCache, now: float) -> Sequence[Action]:
        """What to do now, in order; empty where all is well. Stop at the first action that cannot be carried out."""
        ...

    def judge(self, key: GraphKey, now: float) -> Decision:
        """What is thought of one graph now; changes nothing."""
        ...

    def refuse(self, key: GraphKey, reason: RefusalReason, now: float) -> None:
        """A capture or its verification failed: leave the graph alone until the refusal has aged."""
        ...

    def forget(self, signature: Signature) -> None:
        """The signature's model is gone."""
        ...


class CaptureOnRepeat:
    """Captures a bucket at its second miss, whatever it costs. The baseline that the evaluated policies have to beat."""

    def __init__(self, misses: int = 2, refusal_s: float = 600.0) -> None:
        self._needed = misses
        self._refusal_s = refusal_s
        self._misses: dict[GraphKey, int] = {}
        self._refused: dict[GraphKey, tuple[RefusalReason, float]] = {}

    def count(self, signature: Signature, fit: Bucket, served: Bucket | None, now: float, steps: int = 1) -> bool:
        """Count misses per bucket."""
        if served == fit:
            return False
        key = GraphKey(signature, fit)
        self._misses[key] = self._misses.get(key, 0) + steps
        return self._misses[key] >= self._needed

    def decide(self, cache: GraphCache, now: float) -> Sequence[Action]:
        """Capture what was missed often enough; room is made by the cache's own eviction policy."""
        due = [key for key in list(self._misses) if isinstance(self.judge(key, now), Capture)]
        for key in due:
            self._misses.pop(key, None)
        return [Capture(key, 0.0) for key in due if cache.get(key) is None]

    def judge(self, key: GraphKey, now: float) -> Decision:
        """Refused for a while, else by the number of misses."""
        reason, until = self._refused.get(key, (None, 0.0))
        if reason is not None and now < until:
            return Refuse(reason)
        return Capture(key, 0.0) if self._misses.get(key, 0) >= self._needed else Wait(0.0, 0.0)

    def refuse(self, key: GraphKey, reason: RefusalReason, now: float) -> None:
        """Remember the refusal for a while."""
        self._misses.pop(key, None)
        self._refused[key] = (reason, now + self._refusal_s)

    def forget(self, signature: Signature) -> None:
        """Drop all that is known of the signature."""
        self._misses = {key: n for key, n in self._misses.items() if key.signature != signature}
        self._refused = {key: r for key, r in self._refused.items() if key.signature != signature}
