"""The traffic profile: how often each exact shape of each workload came, decayed by time and bounded in size.

Shapes are exact and not buckets, since buckets change. A few hundred of them are kept for a workload. The rarest give their counts to
shapes that are a little larger, so that ten thousand shapes of one client neither push out a hot one nor vanish from the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

Shape = tuple[tuple[str, int], ...]  # axis and size, sorted by axis

KEPT = (128, 64, 64)  # shapes of a workload: exact, rounded up by at most an eighth, rounded up to a power of two
MOST_WORKLOADS = 1024
MOST_RUNS = 1e15  # of one record; beyond that it is nonsense
MOST_AXES = 16
MOST_SIZE = 2**40
LONGEST_NAME = 256


@dataclass(frozen=True, slots=True, order=True)
class Workload:
    """What a profile tells apart: model, variant and worker role."""

    model: str
    variant: tuple[tuple[str, str], ...] = ()
    phase: str = "any"

    def __str__(self) -> str:
        choices = "".join(f"[{name}={value}]" for name, value in self.variant)
        return f"{self.model}{choices}" + ("" if self.phase == "any" else f"@{self.phase}")


def shape_of(sizes: Mapping[str, int]) -> Shape:
    """A shape as profiles name it."""
    return tuple(sorted(sizes.items()))


def rounded(shape: Shape, steps: int) -> Shape:
    """Every size rounded up, with so many steps from one power of two to the next; small sizes stay exact."""
    return tuple((axis, _up(size, steps)) for axis, size in shape)


def _up(size: int, steps: int) -> int:
    grain = max(1, (1 << (size - 1).bit_length()) // (2 * steps))
    return -(-size // grain) * grain


class HeavyHitters:
    """Counts of the most frequent shapes in bounded memory (Misra and Gries 1982, with weights, cut back in batches).

    No count is too high, and each is too low by at most what was given up so far, divided by `kept + 1`: a cut takes the same amount
    from at least `kept + 1` counts.
    """

    __slots__ = ("counts", "kept")

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self.counts: dict[Shape, float] = {}

    def add(self, shape: Shape, runs: float) -> list[tuple[Shape, float]]:
        """Count; returns what had to be given up for it. Twice as many as are kept are held between two cuts."""
        self.counts[shape] = self.counts.get(shape, 0.0) + runs
        return self.cut() if len(self.counts) > 2 * self.kept else []

    def cut(self) -> list[tuple[Shape, float]]:
        """Go back to `kept` shapes; returns what was given up."""
        if len(self.counts) <= self.kept:
            return []
        level = sorted(self.counts.values(), reverse=True)[self.kept]
        given_up = [(shape, min(runs, level)) for shape, runs in self.counts.items()]
        self.counts = {shape: runs - level for shape, runs in self.counts.items() if runs > level}
        return given_up

    def scale(self, factor: float) -> None:
        """Multiply all counts."""
        self.counts = {shape: runs * factor for shape, runs in self.counts.items()}


class Tally:
    """Runs per shape of one workload.

    What the exact counts give up goes to shapes that are up to an eighth larger, what those give up to powers of two, and what those
    give up to `other`. So no run is lost or counted twice: `total` is exact.
    """

    __slots__ = ("_coarser", "_exact", "other", "rounded")

    def __init__(self) -> None:
        self._exact = HeavyHitters(KEPT[0])
        self._coarser = ((8, HeavyHitters(KEPT[1])), (1, HeavyHitters(KEPT[2])))
        self.rounded = 0.0  # runs that are counted at a larger shape than theirs
        self.other = 0.0  # runs whose shape is not known any more

    def add(self, shape: Shape, runs: float = 1.0) -> None:
        """Count runs of a shape."""
        self._give_way(self._exact.add(shape, runs))

    @property
    def total(self) -> float:
        """All runs."""
        return self.other + sum(sum(tier.counts.values()) for tier in self._tiers())

    @property
    def error(self) -> float:
        """Runs that the count of any shape may lack at most."""
        return (self.rounded + self.other) / (KEPT[0] + 1)

    def shapes(self) -> dict[Shape, float]:
        """Runs by shape, at most the sum of KEPT of them, most frequent first."""
        self._give_way(self._exact.cut(), cut=True)
        found: dict[Shape, float] = {}
        for tier in self._tiers():
            for shape, runs in tier.counts.items():
                found[shape] = found.get(shape, 0.0) + runs
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def merge(self, other: Tally, weight: float = 1.0) -> None:
        """Add another tally's counts, each times `weight`."""
        for shape, runs in other.shapes().items():
            self.add(shape, weight * runs)
        self.rounded += weight * other.rounded  # after `shapes` has cut
        self.other += weight * other.other

    def scale(self, factor: float) -> None:
        """Multiply everything."""
        for tier in self._tiers():
            tier.scale(factor)
        self.rounded *= factor
        self.other *= factor

    def _tiers(self) -> Iterator[HeavyHitters]:
        yield self._exact
        for _, tier in self._coarser:
            yield tier

    def _give_way(self, given_up: Iterable[tuple[Shape, float]], *, cut: bool = False) -> None:
        first = True
        for steps, tier in self._coarser:
            passed_on: list[tuple[Shape, float]] = []
            for shape, runs in given_up:
                self.rounded += runs if first else 0.0
                passed_on += tier.add(rounded(shape, steps), runs)
            passed_on += tier.cut() if cut else []
            given_up, first = passed_on, False
        lost = sum(runs for _, runs in given_up)
        self.other += lost
        self.rounded = max(0.0, self.rounded - lost)


@dataclass(slots=True, eq=False)
class TrafficProfile:
    """Runs per workload and exact shape, each times 0.5^(age / half-life), as of `now`.

    `seconds` is how long one worker was watched, decayed alike and summed over workers: runs / seconds is what one worker has to do.
    Times are seconds of any one clock; the half-life is infinite for counts that don't decay.
    """

    now: float
    half_life_s: float = inf
    seconds: float = 0.0
    tallies: dict[Workload, Tally] = field(default_factory=dict)

    def note(self, workload: Workload, shape: Shape, at: float, runs: float = 1.0) -> bool:
        """Count runs that happened at a time; False where there are too many workloads already."""
        tally = self._tally(workload)
        if tally is not None:
            tally.add(shape, runs * self._weight(at))
        return tally is not None

    def watch(self, seconds: float, at: float) -> None:
        """One worker was watched for so long, about that time."""
        self.seconds += seconds * self._weight(at)

    def advance(self, now: float) -> None:
        """Let time pass: counts decay."""
        if now > self.now:
            factor = 0.5 ** ((now - self.now) / self.half_life_s)
            for tally in self.tallies.values():
                tally.scale(factor)
            self.seconds *= factor
            self.now = now

    def merge(self, other: TrafficProfile) -> None:
        """Add what another profile counted, decayed to this one's `now`."""
        weight = self._weight(other.now)
        for workload, tally in other.tallies.items():
            own = self._tally(workload)
            if own is not None:
                own.merge(tally, weight)
        self.seconds += weight * other.seconds

    def rates(self, workload: Workload) -> dict[Shape, float]:
        """Runs per second of one worker, by shape; empty where nothing is known."""
        tally = self.tallies.get(workload)
        if tally is None or self.seconds <= 0.0:
            return {}
        return {shape: runs / self.seconds for shape, runs in tally.shapes().items()}

    def plain(self) -> dict[str, Any]:
        """The profile as JSON can hold it."""
        return {
            "now": self.now,
            "half_life_s": None if self.half_life_s == inf else self.half_life_s,
            "seconds": self.seconds,
            "workloads": [
                {
                    "model": workload.model,
                    "variant": dict(workload.variant),
                    "phase": workload.phase,
                    "shapes": [{"shape": dict(shape), "runs": runs} for shape, runs in tally.shapes().items()],
                    "rounded": tally.rounded,
                    "other": tally.other,
                }
                for workload, tally in sorted(self.tallies.items())
            ],
        }

    @classmethod
    def from_plain(cls, value: object) -> TrafficProfile:
        """Read what `plain` wrote. Raises ValueError, naming the place."""
        document = _mapping(value, "profile")
        half_life = document.get("half_life_s")
        profile = cls(
            now=number(document.get("now"), "now"),
            half_life_s=inf if half_life is None else number(half_life, "half_life_s"),
            seconds=number(document.get("seconds"), "seconds"),
        )
        if profile.half_life_s <= 0.0:
            raise ValueError("half_life_s: must be positive")
        workloads = _list(document.get("workloads"), "workloads")
        if len(workloads) > MOST_WORKLOADS:
            raise ValueError(f"workloads: must be at most {MOST_WORKLOADS}, not {len(workloads)}")
        for index, item in enumerate(workloads):
            place = f"workloads[{index}]"
            entry = _mapping(item, place)
            profile.tallies.setdefault(read_workload(entry, place), Tally()).merge(_read_tally(entry, place))
        return profile

    def _tally(self, workload: Workload) -> Tally | None:
        found = self.tallies.get(workload)
        if found is None and len(self.tallies) < MOST_WORKLOADS:
            found = self.tallies[workload] = Tally()
        return found

    def _weight(self, at: float) -> float:
        return 1.0 if at >= self.now else 0.5 ** ((self.now - at) / self.half_life_s)


def number(value: object, place: str) -> float:
    """A finite number from 0 to MOST_RUNS. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or not 0.0 <= value <= MOST_RUNS:
        raise ValueError(f"{place}: must be a number from 0 to {MOST_RUNS:g}, not {value!r:.40}")
    return float(value)


def read_workload(value: Mapping[str, object], place: str = "workload") -> Workload:
    """A workload from plain data with the keys model, variant and phase. Raises ValueError."""
    variant = _mapping(value.get("variant", {}), f"{place}.variant")
    choices = tuple((_name(name, place), _name(choice, f"{place}.variant")) for name, choice in variant.items())
    return Workload(_name(value.get("model"), f"{place}.model"), choices, _name(value.get("phase", "any"), f"{place}.phase"))


def read_shape(value: object, place: str = "shape") -> Shape:
    """A shape from plain data, {axis: size}. Raises ValueError."""
    sizes = _mapping(value, place)
    if len(sizes) > MOST_AXES:
        raise ValueError(f"{place}: has {len(sizes)} axes")
    for axis, size in sizes.items():
        _name(axis, place)
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MOST_SIZE:
            raise ValueError(f"{place}.{axis}: must be a size, not {size!r:.40}")
    return shape_of(sizes)


def _read_tally(entry: Mapping[str, object], place: str) -> Tally:
    tally = Tally()
    for index, item in enumerate(_list(entry.get("shapes"), f"{place}.shapes")):
        at = f"{place}.shapes[{index}]"
        counted = _mapping(item, at)
        tally.add(read_shape(counted.get("shape"), f"{at}.shape"), number(counted.get("runs"), f"{at}.runs"))
    tally.rounded += number(entry.get("rounded", 0.0), f"{place}.rounded")
    tally.other += number(entry.get("other", 0.0), f"{place}.other")
    return tally


def _list(value: object, place: str) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"{place}: must be a list, not {value!r:.40}")  # noqa: TRY004 - one kind of error for all that is wrong
    return value


def _mapping(value: object, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{place}: must be a mapping, not {value!r:.40}")  # noqa: TRY004 - likewise
    return value


def _name(value: object, place: str) -> str:
    if not isinstance(value, str) or not value or len(value) > LONGEST_NAME or not value.isprintable():
        raise ValueError(f"{place}: must be a name, not {value!r:.40}")
    return value
