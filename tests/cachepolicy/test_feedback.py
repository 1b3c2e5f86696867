"""Sizes that answer to speed: told from those that do not, and foreseen."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from cachepolicy.closed_loop import ClosedLoop, Request
from cachepolicy.contest import Policy, run, run_fixed
from cachepolicy.costs import Prices
from cachepolicy.demand import Demand, Outlook
from cachepolicy.feedback import Pace, Response
from cachepolicy.simulate import Run
from tests.cachepolicy.worlds import flat, ladder

LARGEST = 64
SECONDS = 200.0


def chat(rate: float, tokens: int = 200, seconds: float = SECONDS) -> list[Request]:
    """Requests at random, `rate` a second, of unlike lengths."""
    random, now, found = Random(3), 0.0, []
    while now < seconds:
        now += random.expovariate(rate)
        found.append(Request(now, 1 + int(random.expovariate(1.0 / tokens))))
    return found


def token_s(prices: Prices, requests: list[Request], *sizes: int) -> float:
    """Mean seconds a token with a fixed set of graphs."""
    loop = ClosedLoop(requests, LARGEST)
    run_fixed([prices], 10_000, loop, [(0, size) for size in sizes])
    return loop.mean_token_s


def paced(eager_s: float, replay_s: float, passed: tuple[float, float], pause: float = 0.0) -> Pace:
    """A thousand steps of 8 rows, half of them replayed, that take `passed` seconds; now and then nothing comes for a while."""
    pace, now = Pace(LARGEST), 0.0
    for step in range(1000):
        replayed = step % 100 >= 50
        pace.note(7, replayed, 1, replay_s if replayed else eager_s, eager_s, now)
        now += passed[replayed] + (pause if step % 97 == 0 else 0.0)
    return pace


def test_steps_that_take_what_they_cost_follow_one_another() -> None:
    """Whatever else takes time beside each."""
    assert paced(6e-3, 3e-3, (6e-3, 3e-3)).answer() > 0.95
    assert 0.4 < paced(6e-3, 3e-3, (7e-3, 4.6e-3)).answer() < 0.8


def test_steps_at_a_pace_of_their_own_do_not_answer() -> None:
    """A step every 10 ms, or whenever a request comes."""
    assert paced(6e-3, 3e-3, (0.01, 0.01)).answer() < 0.01
    assert paced(6e-3, 3e-3, (0.3, 0.3)).answer() < 0.01


def test_pauses_say_little() -> None:
    """A minute without requests is not how long a step takes."""
    assert paced(6e-3, 3e-3, (6e-3, 3e-3), pause=60.0).answer() > 0.8
    assert paced(6e-3, 3e-3, (0.01, 0.01), pause=60.0).answer() < 0.1


def test_nothing_is_told_before_a_size_ran_both_ways() -> None:
    """Eager and replayed."""
    pace = Pace(LARGEST)
    for step in range(1000):
        pace.note(7 + step % 2, step % 2 == 0, 1, 6e-3, 6e-3, step * 6e-3)
    assert pace.answer() == 0.0


@pytest.mark.parametrize("top", [24, 28, 32, 40])
def test_rows_under_way_are_foreseen(top: int) -> None:
    """With one graph, as the loop itself has them: too low a top costs many times its eager steps."""
    prices = flat(LARGEST)
    requests = chat(27.0)
    load = sum(request.tokens for request in requests) / SECONDS
    sizes = Response(prices.eager, prices.replay).sizes(load)
    full = token_s(prices, requests, *range(1, LARGEST + 1))
    padding = sum(rate * (prices.replay[top - 1] - prices.replay[at]) for at, rate in enumerate(sizes.rates[:top]))
    assert full * (1.0 + padding + sum(sizes.uncovered[top:])) == pytest.approx(token_s(prices, requests, top), rel=0.06)


def test_where_no_replay_is_faster_nothing_is_lost() -> None:
    """And rows are Poisson's, seen from the rows themselves."""
    sizes = Response([1e-2] * LARGEST, [2e-2] * LARGEST).sizes(500.0)
    assert sum(sizes.uncovered) == pytest.approx(0.0, abs=1e-9)
    assert sum(size * rate for size, rate in enumerate(sizes.rates, 1)) / sum(sizes.rates) == pytest.approx(6.0, rel=0.02)


@pytest.mark.parametrize("load", [1e-3, 1.0, 1e5])
def test_loads_beyond_all_measure_are_foreseen_too(load: float) -> None:
    """Finite figures, none below zero."""
    sizes = Response([6e-3] * 512, [3e-3] * 512).sizes(load)
    assert all(0.0 <= each < 1e6 for each in (*sizes.rates, *sizes.uncovered))


def test_policy_covers_what_a_closed_loop_reaches() -> None:
    """Room for one graph: nearly as fast as the best single one, which depends on how large the batch would be without it."""
    prices = flat(LARGEST, own=10)
    requests = chat(27.0)
    best = min(token_s(prices, requests, size) for size in range(24, 40, 2))
    loop = ClosedLoop(requests, LARGEST)
    run(Policy.PAYBACK, [prices], 19, loop)
    assert loop.mean_token_s < 1.02 * best
    assert token_s(prices, requests, 22) > 1.2 * best


class Crowd:
    """As many rows at every step as a phase has, however fast: each row that leaves is replaced at once."""

    def __init__(self, *phases: tuple[int, float]) -> None:
        self._phases = phases  # rows, seconds
        self._now = 0.0

    def runs(self) -> Iterator[Run]:
        """Fifty steps at a time, back to back."""
        end = 0.0
        for rows, seconds in self._phases:
            end += seconds
            while self._now < end:
                yield Run(self._now, 0, rows, 50)

    def spent(self, steps: int, seconds: float) -> None:
        """The clock moves on."""
        self._now += seconds

    def stalled(self, seconds: float) -> bool:
        """And during captures."""
        self._now += seconds
        return False


def test_sizes_that_stay_whatever_the_speed_are_covered() -> None:
    """Steps follow one another there too, but faster ones would not make them fewer: no graph is made for sizes that never come."""
    outcome = run(Policy.PAYBACK, [flat(LARGEST)], 19, Crowd((24, 60.0), (45, 60.0), (24, 300.0), (45, 200.0)))
    assert [event.size for event in outcome.events if event.action == "capture"][-3:] == [45, 24, 45]
    assert outcome.replayed > 0.94 * outcome.steps


def test_forecast_goes_by_load_as_far_as_sizes_answer() -> None:
    """Eager steps of 40 rows in 6 ms would be of about 24 in 3.5; those that come every 8 ms whatever they cost stay 40."""
    prices = flat(LARGEST)
    for pace_s, answers in ((None, True), (8e-3, False)):
        demand, random, now = Demand(tuple(ladder(LARGEST).buckets()), prices, Outlook(), 0.0), Random(5), 0.0
        for step in range(40_000):
            served = None if step % 100 else LARGEST - 1
            demand.count(min(LARGEST, round(random.gauss(40.0, 6.3))) - 1, served, 1, now)
            if step % 100 == 0:
                demand.forecast(now)
            now += pace_s or (prices.eager[0] if served is None else prices.replay[served])
        assert (demand.feedback > 0.7) == answers
        assert (demand.feedback < 0.01) != answers
        assert (sum(demand.rates[:32]) > 0.6 * sum(demand.rates)) == answers
