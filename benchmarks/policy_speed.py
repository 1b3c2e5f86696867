"""How long the policy thinks: a decision with 500 graphs in the capturer's thread, a count and a lookup on the request path.

The first tables are CPU time of the thread, so that other work on the machine does not count. The last one is time on the clock of
counts and lookups while another thread decides without pause, beside the same without it: no lock makes a request wait for a decision,
but they share the interpreter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from time import perf_counter, thread_time

from cachepolicy.buckets import Bucket
from cachepolicy.cache import GraphCache, GraphEntry
from cachepolicy.capture import Capture, Evict, PaybackAdmission
from cachepolicy.costs import CostTable, Prices
from cachepolicy.eviction import MarginalSaving
from cachepolicy.keys import Signature
from cachepolicy.simulate import AXIS, known_costs, ladder_of, signature_of

GRAPHS = 500
SECONDS = 200
SIZES = 64
MIB = 1 << 20


class World:
    """Models of unlike popularity, each with all sizes, share a budget of 500 graphs that they could use more of."""

    def __init__(self, models: int) -> None:
        sizes = range(1, SIZES + 1)
        prices = [Prices([6e-3] * SIZES, [3e-3 + 2e-5 * size for size in sizes], [0.01] * SIZES, [MIB] * SIZES, [0] * SIZES)] * models
        costs = CostTable()
        for signature, known in known_costs(prices):
            costs.load(signature, known)
        self.policy = PaybackAdmission(costs)
        self.cache = GraphCache(GRAPHS * MIB, MarginalSaving(self.policy.worth))
        self._signatures = [signature_of(model) for model in range(models)]
        ladder = ladder_of(SIZES)
        self._buckets = tuple(ladder.buckets())
        for signature in self._signatures:
            self.policy.introduce(signature, ladder, 0.0)
        self._random = Random(1)
        self._step = 0
        self.decisions: list[float] = []

    def request(self) -> tuple[float, Signature, Bucket]:
        """The next one: when it comes, 500 a second, and what it needs."""
        self._step += 1
        models = len(self._signatures)
        signature = self._signatures[min(models - 1, int(self._random.expovariate(3 / models)))]
        return self._step / 500, signature, self._buckets[int(self._random.betavariate(2, 4) * (SIZES - 1))]

    def serve(self, clock: Callable[[], float]) -> tuple[float, float, float, bool]:
        """One request: its time, seconds of the lookup and of the count, and whether a decision is due."""
        now, signature, bucket = self.request()
        shape = {AXIS: bucket.volume}
        started = clock()
        entry = self.cache.acquire(signature, shape, bucket)
        found = clock()
        due = self.policy.count(signature, bucket, None if entry is None else entry.key.bucket, now)
        counted = clock()
        if entry is not None:
            self.cache.release(entry)
        return now, found - started, counted - found, due

    def decide(self, now: float) -> None:
        """Decide, and do so."""
        started = thread_time()
        actions = self.policy.decide(self.cache, now)
        self.decisions.append(thread_time() - started)
        for action in actions:
            if isinstance(action, Evict):
                self.cache.evict(action.key)
            elif isinstance(action, Capture):
                self.cache.insert(GraphEntry(action.key, None, MIB), now)


def alone(models: int) -> World:
    """Decisions where they are due, in the requests' own thread."""
    world = World(models)
    lookups, counts = [], []
    for _ in range(500 * SECONDS):
        now, lookup, count, due = world.serve(thread_time)
        lookups.append(lookup)
        counts.append(count)
        if due:
            world.decide(now)
    print(f"{models} models, {len(world.cache)} graphs resident, CPU time")
    show("decision", world.decisions)
    show("lookup", lookups)
    show("count", counts)
    return world


def beside(world: World) -> None:
    """Requests at 2,000 a second, with and without a thread that decides all the time."""
    for name, busy in (("nobody decides", False), ("one decides without pause", True)):
        stop, pause = threading.Event(), threading.Event()

        def think(stop: threading.Event = stop) -> None:
            while not stop.is_set():
                world.decide(world.request()[0])

        thread = threading.Thread(target=think, daemon=True)
        if busy:
            thread.start()
        lookups, counts = [], []
        for _ in range(5_000):
            pause.wait(0.0005)
            _, lookup, count, _ = world.serve(perf_counter)
            lookups.append(lookup)
            counts.append(count)
        stop.set()
        if busy:
            thread.join()
        print(f"on the clock, {name}")
        show("lookup", lookups)
        show("count", counts)


def show(name: str, seconds: list[float]) -> None:
    """One line."""
    seconds = sorted(seconds)
    p50, p99, most = (1e6 * seconds[int(share * (len(seconds) - 1))] for share in (0.5, 0.99, 1.0))
    print(f"  {name:10s} p50 {p50:8.1f} us  p99 {p99:8.1f} us  max {most:8.1f} us  n {len(seconds)}")


if __name__ == "__main__":
    alone(10)
    beside(alone(80))
