"""Profit is measured: eager runs at the sizes that traffic has, against replays padded to the bucket. docs/decisions/0025.

How a measurement is made is the `Timer`'s business; here is what follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from cachepolicy.buckets import Bucket
from cachepolicy.cache import GraphEntry
from service.backends.base import Padding, Recording
from service.lane import Lane
from service.models.spec import Shape, Variant

if TYPE_CHECKING:
    from service.models.loaded import LoadedModel

SIZES = 2  # exact sizes of a bucket's traffic that are measured, the most frequent ones
SHARE = 0.01  # of the device's time, at most, for judging resident graphs again
BOOKKEEPING_S = 40e-6  # of the host's time that counting a replay takes beside the run itself (benchmarks/no_slower.py)
_LOSSES = 3  # in a row retire a graph
_RESTED_S = 10.0  # a graph that is above suspicion is left alone so long


@dataclass(frozen=True, slots=True)
class Sample:
    """Median seconds at one exact size, and the share of traffic that has it."""

    size: Bucket
    weight: float
    eager_s: float
    replay_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured for one graph. `busy_s` is the lane's time that it took; `contended`: requests ran in between."""

    samples: Sequence[Sample]
    busy_s: float
    contended: bool = False

    @property
    def eager_s(self) -> float:
        """Mean eager run over the measured traffic."""
        return self._mean([sample.eager_s for sample in self.samples])

    @property
    def replay_s(self) -> float:
        """Mean replay, padded to the bucket."""
        return self._mean([sample.replay_s for sample in self.samples])

    def pays(self, min_gain: float) -> bool:
        """Whether a replay, and what it takes to count one, beats eager by this share of the replay."""
        return self.replay_s * (1.0 + min_gain) + BOOKKEEPING_S <= self.eager_s

    def _mean(self, values: Sequence[float]) -> float:
        total = sum(sample.weight for sample in self.samples)
        return sum(sample.weight * value for sample, value in zip(self.samples, values, strict=True)) / total

    def __str__(self) -> str:
        told = (
            f"{s.size}: eager {s.eager_s * 1e3:.3g} ms, padded replay {s.replay_s * 1e3:.3g} ms + {BOOKKEEPING_S * 1e3:.3g} ms to count it"
            for s in self.samples
        )
        return "; ".join(told) + (" (beside requests)" if self.contended else "")


class Timer(Protocol):
    """Measures on the lane, preferably when no request waits. At most a stated number of steps."""

    def time(
        self, model: LoadedModel, variant: Variant, recording: Recording, padding: Padding, sizes: Sequence[tuple[Shape, int]], lane: Lane
    ) -> Figures:
        """Eager and replay at these sizes, which have so many runs each. Raises NotYetProvable, CaptureRefused, DeviceLost."""
        ...


@dataclass(slots=True)
class _Standing:
    checked_at: float
    hits: int
    losses: int = 0


@dataclass(slots=True)
class Standings:
    """Whose turn it is to be judged again, and what losses come to. Used by the capturer's thread only.

    After a measurement the device is left alone for long enough that all of them together stay below `SHARE` of its time. A graph whose
    served replays look slow comes first, and so does one that has lost once: a slow-down is confirmed within a few measurements.
    """

    _of: dict[GraphEntry, _Standing] = field(default_factory=dict)
    _not_before: float = 0.0

    def next(self, resident: Iterable[tuple[GraphEntry, bool]], now: float) -> GraphEntry | None:
        """The graph to measure now, if it is time for one. Each comes with whether its served replays look slow."""
        if now < self._not_before:
            return None
        candidates: list[tuple[bool, float, GraphEntry]] = []
        alive = set()
        for entry, suspicious in resident:
            alive.add(entry)
            standing = self._of.setdefault(entry, _Standing(now, entry.hits))
            urgent = suspicious or standing.losses > 0
            if urgent or (entry.hits > standing.hits and now - standing.checked_at >= _RESTED_S):
                candidates.append((not urgent, standing.checked_at, entry))
        self._of = {entry: standing for entry, standing in self._of.items() if entry in alive}
        return min(candidates, key=lambda c: c[:2])[2] if candidates else None

    def postpone(self, entry: GraphEntry, now: float) -> None:
        """It could not be measured."""
        self._of[entry] = _Standing(now, entry.hits)

    def note(self, entry: GraphEntry, figures: Figures, now: float) -> bool:
        """Record a measurement; True where the graph has lost often enough to be retired.

        It loses where eager is faster, and has to win back nothing: what it takes to be admitted (`min_gain`) is more than what it
        takes to stay.
        """
        self._not_before = now + figures.busy_s / SHARE
        standing = self._of.setdefault(entry, _Standing(now, entry.hits))
        standing.checked_at, standing.hits = now, entry.hits
        standing.losses = 0 if figures.pays(0.0) else standing.losses + 1
        return standing.losses >= _LOSSES
