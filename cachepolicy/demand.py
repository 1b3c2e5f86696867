"""What traffic a signature will see, and what a set of graphs would save on it.

A `Demand` counts runs per ladder bucket on the request path and, when asked, turns the counts into a forecast: expected runs per
second and bucket. From the forecast follows every figure the policy uses: the saving of a set, and what one graph more or less
changes, always against the next larger resident graph.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, zip_longest
from math import exp, log, sqrt
from operator import add, mul

from cachepolicy.buckets import Bucket, BucketLadder
from cachepolicy.costs import Prices
from cachepolicy.feedback import Load, Pace, Response

_SMALL = 0.05  # a share of the forecast that is left out


@dataclass(frozen=True, slots=True)
class Outlook:
    """How the past is read. One setting for every model and device.

    Two decaying averages are mixed, a recent and a lasting one, so that what an hour has shown is not erased by a passing change; where
    they show unlike sizes, traffic has changed, and the recent one counts. A profile counts as if it had been seen for an hour, as far as
    traffic is like it. While little was seen, a share of the forecast is spread to neighbouring sizes, over some roots of the size: the
    number of requests under way varies like that, and few observations say little about the largest. Where sizes answer to speed, they
    are forecast from the load, see cachepolicy/feedback.py.
    """

    memories: tuple[float, float] = (100.0, 2000.0)  # seconds, recent and lasting
    lasting: float = 0.8  # share of the lasting average where both show the same sizes
    disbelief: float = 4.0  # power of the likeness that this share, …
    profile_disbelief: float = 6.0  # … or the weight of a profile, is multiplied by
    profile_s: float = 3600.0
    young: float = 600.0  # changes of size after which half of the forecast is still spread
    repeat: float = 0.03  # a run of the same size again says as much as this many changes
    reach: float = 1.0  # roots of the size
    moment_s: float = 2.0  # how long a burst is taken to last
    turns: int = 20  # over which the length of a turn is averaged
    smallest_age_s: float = 0.2
    window_s: float = 5.0  # over which a load is taken to be steady, where sizes answer to speed
    feedback_disbelief: float = 2.0  # power of the likeness of sizes to what their load leads to, that this is multiplied by


class Demand:
    """Counts and forecast of one signature over its ladder's buckets, in the order of `chained`.

    Buckets that are equal in all axes but the first form a chain; a larger one of the same chain serves a smaller one's traffic. That a
    bucket of another chain may cover it too is left out: then a graph saves less than is thought here.
    """

    def __init__(self, buckets: Sequence[Bucket], prices: Prices, outlook: Outlook, now: float) -> None:
        self.buckets = tuple(buckets)
        self._volumes = [bucket.volume for bucket in self.buckets]
        self._first = [0] * len(self.buckets)  # where the position's chain begins
        for at in range(1, len(self.buckets)):
            same = self.buckets[at].sizes[1:] == self.buckets[at - 1].sizes[1:]
            self._first[at] = self._first[at - 1] if same else at
        self.position = {bucket: i for i, bucket in enumerate(self.buckets)}
        self._dense = len(self.buckets[0].sizes) == 1 and all(b - a == 1 for a, b in zip(self._volumes, self._volumes[1:], strict=False))
        self._numbered = self._dense and self._volumes[0] == 1
        self.outlook = outlook
        self._tail = [exp(-1.0 / (outlook.reach * sqrt(volume))) for volume in self._volumes]  # what is left of one, a size further
        self.born = now
        self.lost = 0.0  # seconds lost against the best graph of each run, since the last decision
        self.runs = [0] * len(self.buckets)  # since the start, never decayed
        self.highest = -1  # largest position seen
        self._pending: dict[int, int] = {}
        self._averages = [[0.0] * len(self.buckets) for _ in outlook.memories]
        self.folded = now  # when the forecast was last made
        self._evidence = 0.0
        self._last = -1
        self._pace = Pace(len(self.buckets))
        self._load = Load(outlook.memories, outlook.window_s, now)
        self._response: Response | None = None
        self.feedback = 0.0  # how far sizes answer to speed: from 0.0, not at all, to 1.0
        self.turn = 0.0  # runs in a row before another signature's come, on average
        self._turns = 0  # that were averaged
        self._in_row = 0
        self._moment = 0.0  # runs of the last moment, decaying
        self._moment_at = now
        self._profile: list[float] = []
        self.trust: float = 0.0  # in the profile: from 1.0, as far as traffic is like it
        self.rates: list[float] = []
        self._worth: list[float] = []  # seconds per second by position: of eager runs, and of what else leaving a size to them costs
        self.price(prices)
        self._sum()

    # -- request path -------------------------------------------------------------------------------------------------------

    def loss(self, at: int, served: int | None) -> float:
        """Seconds a run at ladder position `at` loses for want of its own graph, replayed at `served` or eager (None)."""
        best = self.possible[at]
        return best if served is None else min(best, max(0.0, self.prices.replay[served] - self.prices.replay[at]))

    def count(self, at: int, served: int | None, steps: int, now: float) -> float:
        """Note runs; returns the seconds lost since the last decision."""
        self._in_row += steps
        self._moment = steps + self._moment * exp((self._moment_at - now) / self.outlook.moment_s)
        self._moment_at = now
        self._pending[at] = self._pending.get(at, 0) + steps
        self._evidence += self.outlook.repeat * steps
        if at != self._last:
            self._last = at
            self._evidence += 1.0
        self.lost += steps * self.loss(at, served)
        if self._numbered:
            eager_s = steps * self.prices.eager[at]
            cost_s = eager_s if served is None else steps * self.prices.replay[served]
            self._pace.note(at, served is not None, steps, cost_s, eager_s, now)
        return self.lost

    def end_turn(self) -> None:
        """Another signature's runs come next."""
        self._turns = min(self._turns + 1, self.outlook.turns)
        self.turn += (self._in_row - self.turn) / self._turns
        self._in_row = 0

    # -- forecast -----------------------------------------------------------------------------------------------------------

    def price(self, prices: Prices) -> None:
        """Take new costs; the forecast must be made again."""
        self.prices = prices
        self._response = None
        eager, replay = prices.eager, prices.replay
        self.possible = [max(0.0, e - g) for e, g in zip(eager, replay, strict=True)]
        self._rising = all(a <= b for a, b in pairwise(eager))
        # The first position of the chain that the replay at i is not slower for (exact where eager times rise with size).
        floors = [bisect_right(eager, g, 0, i + 1) if self._rising else 0 for i, g in enumerate(replay)]
        self._lowest = list(map(max, floors, self._first))

    def activity(self, now: float) -> float:
        """Runs of this moment against the forecast: 1.0 where they are as many, 0.0 while there are none."""
        expected = self.outlook.moment_s * self._steps[-1]
        return self._moment * exp((self._moment_at - now) / self.outlook.moment_s) / expected if expected > 0.0 else 0.0

    def age(self, now: float) -> float:
        """Seconds since counting began."""
        return now - self.born

    @property
    def observed(self) -> bool:
        """Whether any run was counted."""
        return self._last >= 0

    def expect(self, profile: Mapping[Bucket, float]) -> None:
        """Begin with the runs per bucket that a traffic profile promises."""
        self._profile = [profile.get(bucket, 0.0) for bucket in self.buckets]
        self.trust = 1.0 if any(self._profile) else 0.0
        self.highest = max((at for at, runs in enumerate(self._profile) if runs), default=-1)

    def assume(self, rates: Sequence[float]) -> None:
        """Take `rates` as known instead of forecasting them: for plans made in hindsight."""
        self.rates = list(rates)
        self._worth = list(map(mul, self.rates, self.prices.eager))
        self.runs = [round(rate) for rate in rates]
        self._sum()

    def forecast(self, now: float) -> None:
        """Fold in what was counted and set `rates`: expected runs per second, by position."""
        pending, self._pending = self._pending, {}
        for at, steps in pending.items():
            self.runs[at] += steps
            self.highest = max(self.highest, at)
        top = self.highest + 1
        passed, self.folded = now - self.folded, now
        age = self.age(now)
        recalled = []
        for memory, average in zip(self.outlook.memories, self._averages, strict=True):
            kept = exp(-passed / memory)
            length = max(self.outlook.smallest_age_s, memory * (1.0 - exp(-age / memory)))
            average[:top] = [value * kept for value in average[:top]]
            for at, steps in pending.items():
                average[at] += steps
            recalled.append([value / length for value in average[:top]])
        recent, lasting = recalled
        share = self.outlook.lasting * likeness(recent, lasting, self.outlook.disbelief)
        rates = [share * old + (1.0 - share) * new for old, new in zip(lasting, recent, strict=True)]
        spread = 1.0 / (1.0 + (self._evidence / self.outlook.young) ** 2)
        if self.trust:
            rates = self._with_profile(rates, spread, age)
            spread *= 1.0 - self.trust
        self.rates = self._spread(rates, spread) if spread > 0.01 and self._dense else rates
        self._worth = list(map(mul, self.rates, self.prices.eager))
        if self._numbered:
            self._with_feedback(now)
        self._sum()

    def _with_feedback(self, now: float) -> None:
        """As far as sizes answer to speed, forecast them from the load instead of from the sizes that there were."""
        ended = self._load.ends(now)
        if not ended and self.feedback < _SMALL:
            return
        answer = self._pace.answer() if ended else 1.0
        if answer < _SMALL:
            self.feedback = 0.0
            self._load.forget(self._pace, now)
            return
        if self._response is None:
            if not all(self.prices.eager) or not all(self.prices.replay):
                return  # not measured yet
            self._response = Response(self.prices.eager, self.prices.replay)
        outlook = self.outlook
        recent, lasting = self._load.recall(self._pace, self._response, now)
        if ended:
            self.feedback = answer * likeness(recent.expected, recent.seen, outlook.feedback_disbelief)
        if self.feedback < _SMALL:
            return
        lengths = self._load.lengths(now)
        share = outlook.lasting * likeness(recent.rates, lasting.rates, outlook.disbelief)
        weights = (1.0 - share) / lengths[0], share / lengths[1]
        rates = [weights[0] * new + weights[1] * old for new, old in zip(recent.rates, lasting.rates, strict=True)]
        uncovered = [weights[0] * new + weights[1] * old for new, old in zip(recent.uncovered, lasting.uncovered, strict=True)]
        worth = [
            rate * min(eager, replay) + lost
            for rate, lost, eager, replay in zip(rates, uncovered, self.prices.eager, self.prices.replay, strict=False)
        ]
        self.rates = _mixed(self.rates, rates, self.feedback)
        self._worth = _mixed(self._worth, worth, self.feedback)

    def _with_profile(self, rates: list[float], ignorance: float, age: float) -> list[float]:
        """Mix in the profile, as if it had been seen for `profile_s` seconds, less where traffic turns out to be unlike it."""
        profile, outlook = self._profile[: len(rates)], self.outlook
        self.trust = likeness(profile, self.runs[: len(rates)], outlook.profile_disbelief * (1.0 - ignorance))
        promised = sum(profile) / outlook.profile_s
        expected = ignorance * promised + (1.0 - ignorance) * sum(rates)
        scale = expected / promised / outlook.profile_s if promised else 0.0
        weight = self.trust * outlook.profile_s / (self.trust * outlook.profile_s + age)
        return [weight * scale * runs + (1.0 - weight) * rate for runs, rate in zip(profile, rates, strict=True)]

    def _spread(self, rates: list[float], share: float) -> list[float]:
        """Move a share of each rate to larger and smaller sizes: an exponential tail on each side, some roots of the size long."""
        largest = self._volumes[len(rates) - 1] if rates else 0
        count = max(len(rates), bisect_right(self._volumes, largest + 4.0 * self.outlook.reach * sqrt(largest)))
        wide = rates + [0.0] * (count - len(rates))
        result = [(1.0 - share) * rate for rate in wide]
        share *= 0.5
        for order in (range(count), range(count - 1, -1, -1)):
            carried = 0.0
            for at in order:
                kept = self._tail[at]
                carried = carried * kept + wide[at] * (1.0 - kept)
                result[at] += share * carried
        return result

    def _sum(self) -> None:
        self._steps = [0.0, *accumulate(self.rates)]
        self._eager: list[float] = [0.0, *accumulate(self._worth)]
        self._runs: list[float] = [0.0, *accumulate(map(add, self.runs, self._profile) if self._profile else self.runs)]

    # -- what a set saves ---------------------------------------------------------------------------------------------------

    def served(self, below: int, at: int) -> float:
        """Seconds saved per second by the graph at `at` on sizes above position `below` (-1: all) that are faster replayed."""
        low, high, known = self._lowest[at], at + 1, len(self.rates)
        if below >= low:
            low = below + 1
        high = min(high, known)
        if low >= high:
            return 0.0
        replay = self.prices.replay[at]
        if self._rising:
            return self._eager[high] - self._eager[low] - replay * (self._steps[high] - self._steps[low])
        return sum(max(0.0, self._worth[i] - self.rates[i] * replay) for i in range(low, high))

    def served_above(self, belows: Sequence[int], at: int) -> list[float]:
        """The same for several smaller neighbours, ascending."""
        lowest, high = self._lowest[at], min(at + 1, len(self.rates))
        if not self._rising or lowest >= high:
            return [self.served(below, at) for below in belows]
        eager, steps, replay = self._eager, self._steps, self.prices.replay[at]
        whole, all_steps = eager[high], steps[high]
        starts = [lowest if below < lowest else min(below + 1, high) for below in belows]
        return [whole - eager[low] - replay * (all_steps - steps[low]) for low in starts]

    def alone(self) -> list[float]:
        """Seconds per second that each size would save, replayed at its own size."""
        return [max(0.0, worth - rate * replay) for worth, rate, replay in zip(self._worth, self.rates, self.prices.replay, strict=False)]

    def saving(self, resident: Sequence[int]) -> float:
        """Seconds saved per second by a set of positions, ascending."""
        return sum(self.served(below, at) for below, at in zip((-1, *resident), resident, strict=False))

    def gain(self, below: int, at: int, above: int | None) -> float:
        """Seconds per second that a graph at `at` adds between its resident neighbours (-1 and None: no neighbour)."""
        if above is None:
            return self.served(below, at)
        return self.served(below, at) + self.served(at, above) - self.served(below, above)

    def additions(self, resident: Sequence[int]) -> Iterator[tuple[int, int, float]]:
        """What each graph more would `gain`: its position, the next smaller resident one (-1: none), seconds per second."""
        known = len(self.rates)
        for below, above in zip((-1, *resident), (*resident, None), strict=True):
            positions = range(below + 1, known if above is None else min(above, known))
            if above is None:
                yield from ((at, below, self.served(below, at)) for at in positions)
            else:
                covered = self.served(below, above)
                left = self.served_above(positions, above)
                yield from ((at, below, self.served(below, at) + rest - covered) for at, rest in zip(positions, left, strict=True))

    def seen(self, below: int, at: int) -> float:
        """Runs ever counted, or promised, above position `below` up to `at`."""
        return self._runs[at + 1] - self._runs[max(below + 1, self._first[at])]


def chained(ladder: BucketLadder) -> tuple[Bucket, ...]:
    """A ladder's buckets, chain by chain, each with the first axis ascending."""
    return tuple(sorted(ladder.buckets(), key=lambda bucket: tuple(size for _, size in (*bucket.sizes[1:], bucket.sizes[0]))))


def likeness(one: Sequence[float], other: Sequence[float], power: float) -> float:
    """What two distributions over sizes have in common, to a power: 1.0 where they are proportional, 0.0 where they share no size."""
    first, second = sum(one), sum(other)
    if first <= 0.0 or second <= 0.0:
        return 1.0
    return exp(power * log(max(1e-9, sum(map(min, [a / first for a in one], [b / second for b in other])))))


def neighbours(resident: Sequence[int], at: int) -> tuple[int, int | None]:
    """The resident positions next below (-1: none) and next above (None: none) a position."""
    where = bisect_left(resident, at)
    below = resident[where - 1] if where else -1
    if where < len(resident) and resident[where] == at:
        where += 1
    return below, resident[where] if where < len(resident) else None


def _mixed(one: Sequence[float], other: Sequence[float], share: float) -> list[float]:
    """`share` of the other."""
    return [(1.0 - share) * a + share * b for a, b in zip_longest(one, other, fillvalue=0.0)]
