"""What runs cost: eager, replay, capture, bytes. Measured while serving, interpolated where not measured yet."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cachepolicy.buckets import Bucket
from cachepolicy.keys import GraphKey, Signature

_SHARES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
_WORTH_TELLING = 0.02  # relative change of an estimate that makes those who computed with it compute again


@dataclass(frozen=True, slots=True)
class Guesses:
    """What is assumed before anything was measured. The first capture replaces them."""

    replay_per_eager: float = 0.5
    capture_s: float = 0.1
    capture_per_eager: float = 0.0  # seconds on top, per second of an eager run: a capture runs the step a few times
    bytes: int = 16 << 20


@dataclass(frozen=True, slots=True)
class Prices:
    """Costs along a ladder, by position: seconds and bytes.

    `eager` is the mean eager run of traffic whose bucket this is. A set of one signature's graphs takes the sum of their `own` bytes
    and the largest of their `top` bytes: with private pools `top` is zero, in an arena it is nearly all.
    """

    eager: Sequence[float]
    replay: Sequence[float]
    capture: Sequence[float]
    own: Sequence[int]
    top: Sequence[int]

    def bytes(self, positions: Iterable[int]) -> int:
        """Bytes of a set."""
        chosen = list(positions)
        return sum(self.own[at] for at in chosen) + max((self.top[at] for at in chosen), default=0)


@dataclass(slots=True)
class Curve:
    """A cost over volume: moving averages where observed, linear in between, flat below, rising by the last slope above.

    What is averaged is the median of the last samples, so that a single one tells nothing: a run beside a stall takes twenty times as long.
    """

    weight: float = 0.1  # of a new median against the average so far
    window: int = 1  # samples that a median is taken of
    _points: dict[int, float] = field(default_factory=dict)
    _told: dict[int, float] = field(default_factory=dict)
    _known: list[int] = field(default_factory=list)
    _recent: dict[int, list[float]] = field(default_factory=dict)

    def observe(self, volume: int, value: float) -> bool:
        """Fold in one sample; whether the estimate has moved so much that it is worth telling."""
        old = self._points.get(volume)
        recent = self._recent[volume] = [*self._recent.get(volume, ()), value][-self.window :]
        median = sorted(recent)[(len(recent) - 1) // 2]  # of two the smaller: what disturbs a run makes it longer
        young = old is None or len(recent) < self.window
        new = self._points[volume] = median if young or old is None else old + self.weight * (median - old)
        if old is None:
            insort(self._known, volume)  # last: another thread may be reading
        told = self._told.get(volume)
        if told is not None and abs(new - told) <= _WORTH_TELLING * told:
            return False
        self._told[volume] = new
        return True

    def without(self, volume: int) -> Curve:
        """The same curve with one point unknown."""
        points = {other: value for other, value in self._points.items() if other != volume}
        told = {v: t for v, t in self._told.items() if v in points}
        recent = {v: r for v, r in self._recent.items() if v in points}
        return Curve(self.weight, self.window, points, told, sorted(points), recent)

    def at(self, volume: int) -> float | None:
        """The estimate at a volume; None where nothing was observed."""
        found = self._points.get(volume)
        if found is not None or not self._known:
            return found
        where = bisect_left(self._known, volume)
        if where == 0:
            return self._points[self._known[0]]
        if where < len(self._known):
            low, high = self._known[where - 1], self._known[where]
        elif where > 1:
            low, high = self._known[-2], self._known[-1]
        else:
            return self._points[self._known[-1]]
        slope = (self._points[high] - self._points[low]) / (high - low)
        if where == len(self._known):
            return self._points[high] + max(0.0, slope) * (volume - high)
        return self._points[low] + slope * (volume - low)


@dataclass(slots=True)
class _Curves:
    eager: Curve = field(default_factory=lambda: Curve(window=5))
    replay: Curve = field(default_factory=lambda: Curve(window=5))
    capture: Curve = field(default_factory=lambda: Curve(weight=0.3))
    own: Curve = field(default_factory=lambda: Curve(weight=1.0))
    top: Curve = field(default_factory=lambda: Curve(weight=1.0))
    version: int = 0


class CostTable:
    """Costs per signature, weights aside: a reload keeps what was learned. Seconds and bytes."""

    def __init__(self, guesses: Guesses = Guesses()) -> None:
        self._guesses = guesses
        self._curves: defaultdict[str, _Curves] = defaultdict(_Curves)
        self._fingerprints: dict[Signature, str] = {}
        self._share = 1.0
        self._share_version = 0

    def charge_captures(self, busy: float) -> None:
        """Charge captures by what they take from others: `busy` is the share of time that the device had work of late.

        A capture in an idle moment costs nobody anything but its bytes. In steps of two, so that prices do not move all the time.
        """
        share = next((step for step in _SHARES if busy <= step), 1.0)
        if share != self._share:
            self._share = share
            self._share_version += 1

    def observe_eager(self, signature: Signature, fit: Bucket, seconds: float) -> None:
        """One eager run whose ladder bucket is `fit`."""
        curves = self._of(signature)
        curves.version += curves.eager.observe(fit.volume, seconds)

    def observe_replay(self, signature: Signature, bucket: Bucket, seconds: float) -> None:
        """One replay, padded to `bucket`."""
        curves = self._of(signature)
        curves.version += curves.replay.observe(bucket.volume, seconds)

    def observe_capture(self, signature: Signature, bucket: Bucket, seconds: float, size: int, arena_bytes: int = 0) -> None:
        """One capture with its verification, the bytes of its own, and the size of its arena right after (0: none)."""
        curves = self._of(signature)
        curves.capture.observe(bucket.volume, seconds)
        curves.own.observe(bucket.volume, size)
        curves.top.observe(bucket.volume, arena_bytes)
        curves.version += 1

    def doubt(self, signature: Signature, bucket: Bucket) -> None:
        """What was observed of replays at a bucket may not hold any more: estimate them from other buckets until observed anew."""
        curves = self._of(signature)
        curves.replay = curves.replay.without(bucket.volume)
        curves.version += 1

    def eager(self, signature: Signature, fit: Bucket) -> float | None:
        """Seconds of an eager run; None where nothing is known."""
        return self._of(signature).eager.at(fit.volume)

    def replay(self, signature: Signature, bucket: Bucket) -> float | None:
        """Seconds of a replay; None where nothing is known."""
        return self._of(signature).replay.at(bucket.volume)

    def capture(self, signature: Signature, bucket: Bucket) -> float | None:
        """Seconds of a capture; None where nothing is known."""
        return self._of(signature).capture.at(bucket.volume)

    def version(self, signature: Signature) -> int:
        """Changes whenever `prices` would answer differently by more than a trifle."""
        return self._of(signature).version + self._share_version

    def prices(self, signature: Signature, buckets: Sequence[Bucket]) -> Prices:
        """Estimates along a ladder, guessed where nothing is known. A replay not yet measured is taken to grow as eager does."""
        curves, guess = self._of(signature), self._guesses
        volumes = [bucket.volume for bucket in buckets]
        eager = [curves.eager.at(volume) or 0.0 for volume in volumes]
        replay = [curves.replay.at(volume) for volume in volumes]
        return Prices(
            eager=eager,
            replay=[guess.replay_per_eager * e if g is None else g for e, g in zip(eager, replay, strict=True)],
            capture=[
                self._share * _or(curves.capture.at(volume), guess.capture_s + guess.capture_per_eager * e)
                for volume, e in zip(volumes, eager, strict=True)
            ],
            own=[int(_or(curves.own.at(volume), guess.bytes)) for volume in volumes],
            top=[int(_or(curves.top.at(volume), 0)) for volume in volumes],
        )

    def bytes(self, keys: Iterable[GraphKey]) -> int:
        """Estimated bytes of a set of graphs."""
        sets: defaultdict[Signature, list[Bucket]] = defaultdict(list)
        for key in keys:
            sets[key.signature].append(key.bucket)
        return sum(self.prices(signature, buckets).bytes(range(len(buckets))) for signature, buckets in sets.items())

    def load(self, signature: Signature, prices: Mapping[Bucket, tuple[float, float, float, int, int]]) -> None:
        """Take known costs per bucket: eager, replay and capture seconds, own and arena bytes."""
        for bucket, (eager, replay, capture, own, top) in prices.items():
            self.observe_eager(signature, bucket, eager)
            self.observe_replay(signature, bucket, replay)
            self.observe_capture(signature, bucket, capture, own, top)

    def _of(self, signature: Signature) -> _Curves:
        name = self._fingerprints.get(signature)
        if name is None:
            name = self._fingerprints.setdefault(signature, signature.cost_fingerprint())
        return self._curves[name]


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
