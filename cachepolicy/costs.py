"""What runs cost: eager, replay, capture, bytes. Measured while serving, interpolated where not measured yet."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from cachepolicy.buckets import Bucket
from cachepolicy.keys import Signature


@dataclass(slots=True)
class Curve:
    """A cost over volume: moving averages where observed, linear in between, flat below, rising by the last slope above."""

    weight: float = 0.1  # of a new sample against the average so far
    _points: dict[int, float] = field(default_factory=dict)
    _known: list[int] = field(default_factory=list)

    def observe(self, volume: int, value: float) -> None:
        """Fold in one sample."""
        old = self._points.get(volume)
        if old is None:
            self._known = sorted((*self._known, volume))
        self._points[volume] = value if old is None else old + self.weight * (value - old)

    def at(self, volume: int) -> float | None:
        """The estimate at a volume; None where nothing was observed."""
        known = self._points.get(volume)
        if known is not None or not self._known:
            return known
        below = [v for v in self._known if v < volume]
        above = [v for v in self._known if v > volume]
        if not below:
            return self._points[above[0]]
        if above:
            low, high = below[-1], above[0]
        elif len(below) > 1:
            low, high = below[-2], below[-1]
        else:
            return self._points[below[-1]]
        slope = (self._points[high] - self._points[low]) / (high - low)
        return self._points[low] + max(0.0, slope) * (volume - low)


@dataclass(slots=True)
class _Curves:
    eager: Curve = field(default_factory=Curve)
    replay: Curve = field(default_factory=Curve)
    capture: Curve = field(default_factory=Curve)
    bytes: Curve = field(default_factory=Curve)


class CostTable:
    """Costs per signature, weights aside: a reload keeps what was learned. Seconds and bytes."""

    def __init__(self) -> None:
        self._curves: defaultdict[str, _Curves] = defaultdict(_Curves)
        self._fingerprints: dict[Signature, str] = {}

    def observe_eager(self, signature: Signature, fit: Bucket, seconds: float) -> None:
        """One eager run whose ladder bucket is `fit`."""
        self._of(signature).eager.observe(fit.volume, seconds)

    def observe_replay(self, signature: Signature, bucket: Bucket, seconds: float) -> None:
        """One replay, padded to `bucket`."""
        self._of(signature).replay.observe(bucket.volume, seconds)

    def observe_capture(self, signature: Signature, bucket: Bucket, seconds: float, size: int) -> None:
        """One capture with its verification, and the bytes it came to hold."""
        curves = self._of(signature)
        curves.capture.observe(bucket.volume, seconds)
        curves.bytes.observe(bucket.volume, size)

    def eager(self, signature: Signature, fit: Bucket) -> float | None:
        """Seconds of an eager run; None where nothing is known."""
        return self._of(signature).eager.at(fit.volume)

    def replay(self, signature: Signature, bucket: Bucket) -> float | None:
        """Seconds of a replay; None where nothing is known."""
        return self._of(signature).replay.at(bucket.volume)

    def capture(self, signature: Signature, bucket: Bucket) -> float | None:
        """Seconds of a capture; None where nothing is known."""
        return self._of(signature).capture.at(bucket.volume)

    def _of(self, signature: Signature) -> _Curves:
        name = self._fingerprints.get(signature)
        if name is None:
            name = self._fingerprints.setdefault(signature, signature.cost_fingerprint())
        return self._curves[name]
