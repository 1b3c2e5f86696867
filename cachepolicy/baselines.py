"""What others do, behind the same protocol: capture on every miss, or a fixed list of sizes. For comparison only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cachepolicy.buckets import Bucket, BucketLadder
from cachepolicy.cache import GraphCache
from cachepolicy.capture import Action, Capture, Decision, Refuse, Wait
from cachepolicy.keys import GraphKey, Signature
from cachepolicy.reasons import RefusalReason


class CaptureOnMiss:
    """Captures a bucket at its first misses, whatever it costs; the cache's own eviction policy makes room."""

    def __init__(self, misses: int = 1, refusal_s: float = 600.0) -> None:
        self._needed = misses
        self._refusal_s = refusal_s
        self._misses: dict[GraphKey, int] = {}
        self._refused: dict[GraphKey, tuple[RefusalReason, float]] = {}

    def introduce(self, signature: Signature, ladder: BucketLadder, now: float, profile: Mapping[Bucket, float] | None = None) -> None:
        """Needs to know nothing."""

    def count(self, signature: Signature, fit: Bucket, served: Bucket | None, now: float, steps: int = 1) -> bool:
        """Count runs that no resident graph served."""
        if served is not None:
            return False
        key = GraphKey(signature, fit)
        self._misses[key] = self._misses.get(key, 0) + steps
        return self._misses[key] >= self._needed

    def steps_until_due(self, signature: Signature, fit: Bucket, served: Bucket | None) -> int | None:
        """Misses left until the bucket is due."""
        return None if served is not None else max(1, self._needed - self._misses.get(GraphKey(signature, fit), 0))

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

    def pardon(self, key: GraphKey) -> None:
        """Forget the refusal."""
        self._refused.pop(key, None)

    def forget(self, signature: Signature) -> None:
        """Drop all that is known of the signature."""
        self._misses = {key: n for key, n in self._misses.items() if key.signature != signature}
        self._refused = {key: r for key, r in self._refused.items() if key.signature != signature}


class FixedSet:
    """Captures a given list at the start, and nothing else ever."""

    def __init__(self, keys: Iterable[GraphKey]) -> None:
        self._left = list(keys)

    def introduce(self, signature: Signature, ladder: BucketLadder, now: float, profile: Mapping[Bucket, float] | None = None) -> None:
        """Needs to know nothing."""

    def count(self, signature: Signature, fit: Bucket, served: Bucket | None, now: float, steps: int = 1) -> bool:
        """Nothing is ever due."""
        return False

    def steps_until_due(self, signature: Signature, fit: Bucket, served: Bucket | None) -> int | None:
        """Nothing is ever due."""
        return None

    def decide(self, cache: GraphCache, now: float) -> Sequence[Action]:
        """The list, once."""
        left, self._left = self._left, []
        return [Capture(key, 0.0) for key in left]

    def judge(self, key: GraphKey, now: float) -> Decision:
        """Nothing more will come."""
        return Wait(0.0, 0.0)

    def refuse(self, key: GraphKey, reason: RefusalReason, now: float) -> None:
        """Leave it out."""

    def pardon(self, key: GraphKey) -> None:
        """Nothing is refused for good."""

    def forget(self, signature: Signature) -> None:
        """Nothing is remembered."""
