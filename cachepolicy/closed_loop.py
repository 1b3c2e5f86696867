"""A closed loop: how long steps take decides which requests meet in a batch.

The model of a decoding replica. Requests arrive at given times and join, once their prefill is over, between two steps. Each step
advances every live row by one token and takes what the policy makes it take: the replay of the graph that serves it, or an eager step.
A capture stalls the loop for its whole time. A row leaves after its last token. Nothing else takes time, and no batch is too large.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from cachepolicy.simulate import Run


@dataclass(frozen=True, slots=True)
class Request:
    """Joins the batch at `ready` seconds and leaves after `tokens` steps."""

    ready: float
    tokens: int


class ClosedLoop:
    """A source of runs for one model; runs once. `token_s` sums the seconds that each token waited for its step, `tokens` counts them."""

    def __init__(self, requests: Sequence[Request], largest: int) -> None:
        """`largest` is the last size of the ladder: more rows than that wait."""
        self._requests = sorted(requests, key=lambda request: request.ready)
        self._largest = largest
        self._next = 0
        self._now = 0.0
        self._step = 0  # steps done
        self._leaving: list[int] = []  # the step after which each live row leaves
        self._short = 0.0  # mean seconds of a step of the current run, as far as known
        self.steps: Counter[int] = Counter()  # done, by rows
        self.tokens = 0
        self.token_s = 0.0

    def runs(self) -> Iterator[Run]:
        """Runs of one step at a time where requests wait to join, else up to the next row that leaves."""
        while True:
            self._join()
            if not self._leaving:
                if self._next == len(self._requests):
                    return
                self._now = max(self._now, self._requests[self._next].ready)
                continue
            steps = self._leaving[0] - self._step
            if self._next < len(self._requests) and len(self._leaving) < self._largest:
                until = self._requests[self._next].ready - self._now
                steps = max(1, min(steps, int(until / self._short))) if self._short > 0.0 else 1
            yield Run(self._now, 0, len(self._leaving), steps)

    def spent(self, steps: int, seconds: float) -> None:
        """The clock moves on by what the steps took."""
        rows = len(self._leaving)
        self._now += seconds
        self._step += steps
        self._short = seconds / steps
        self.steps[rows] += steps
        self.tokens += rows * steps
        self.token_s += rows * seconds

    def stalled(self, seconds: float) -> bool:
        """Every live row waits for the capture, and meanwhile more requests may have come."""
        self._now += seconds
        self.token_s += len(self._leaving) * seconds
        return seconds > 0.0

    def at_eager_speed(self, eager: Sequence[float]) -> list[Run]:
        """The runs that come where every step is eager; `eager` in seconds, position i is size i + 1."""
        found = []
        for run in self.runs():
            found.append(run)
            self.spent(run.steps, run.steps * eager[run.size - 1])
        return found

    @property
    def mean_token_s(self) -> float:
        """Seconds per token."""
        return self.token_s / max(1, self.tokens)

    def _join(self) -> None:
        while self._leaving and self._leaving[0] <= self._step:
            heappop(self._leaving)
        while self._next < len(self._requests) and self._requests[self._next].ready <= self._now and len(self._leaving) < self._largest:
            heappush(self._leaving, self._step + self._requests[self._next].tokens)
            self._next += 1


def requests_of(runs: Iterable[Run]) -> list[Request]:
    """Requests that would make recorded runs: a rise in rows is as many arrivals, a fall ends those that came first. One model's runs."""
    found: list[Request] = []
    live: deque[tuple[float, int]] = deque()  # arrival, steps done before it
    steps = 0
    for run in runs:
        while len(live) > run.size:
            came, before = live.popleft()
            found.append(Request(came, max(1, steps - before)))
        live.extend((run.time, steps) for _ in range(run.size - len(live)))
        steps += run.steps
    found += [Request(came, max(1, steps - before)) for came, before in live]
    return found
