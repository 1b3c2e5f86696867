"""What every store does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cachepolicy.profile import KEPT, TrafficProfile, Workload, shape_of
from service.stores.base import COSTS_KEPT_S, KEPT_S, MOST_WINDOWS, WINDOW_S, ProfileStore, Window
from tests.service.stores.conftest import Skips
from tests.service.stores.things import LEGAL, NOW, START, cost, window

Opened = Callable[[], ProfileStore]


async def test_what_one_worker_writes_another_reads(opened: Opened, skips: Skips) -> None:
    """Windows with their shapes, and costs with all figures."""
    one, other = opened(), opened()
    await one.write([window()], [cost()], NOW)
    found = await other.read(NOW)
    (read,) = found.windows
    assert (read.start, read.worker, read.traffic.seconds) == (START, "one-a1", 300.0)
    assert read.traffic.tallies[LEGAL].shapes() == {shape_of({"batch": 4, "seq": 57}): 7.0}
    assert found.costs == [cost()]
    assert skips.count == 0
    await one.close()
    await other.close()


async def test_an_empty_store_is_empty(opened: Opened) -> None:
    """Not an error."""
    store = opened()
    found = await store.read(NOW)
    assert (found.windows, found.costs) == ([], [])
    await store.close()


async def test_writing_again_replaces(opened: Opened) -> None:
    """Counts are absolute: a write that is repeated, or that had landed unnoticed, counts once. Shapes that went out of it are gone."""
    store = opened()
    await store.write([window(runs=1.0), window("two-b2")], [cost(eager_s=0.001)], NOW)
    newer = TrafficProfile(now=float(START))
    newer.note(LEGAL, shape_of({"batch": 9, "seq": 1}), START, 12.0)
    for _ in range(3):
        await store.write([Window(START, "one-a1", newer)], [cost(eager_s=0.009)], NOW)
    found = await store.read(NOW)
    shapes = {read.worker: read.traffic.tallies[LEGAL].shapes() for read in found.windows}
    assert shapes == {"one-a1": {shape_of({"batch": 9, "seq": 1}): 12.0}, "two-b2": {shape_of({"batch": 4, "seq": 57}): 7.0}}
    assert [record.eager_s for record in found.costs] == [0.009]
    await store.close()


async def test_a_flood_keeps_its_bounds_and_its_sum(opened: Opened, skips: Skips) -> None:
    """What a tally rounds up or gives up arrives as that."""
    traffic = TrafficProfile(now=float(START))
    for number in range(10_000):
        traffic.note(LEGAL, shape_of({"batch": 1 + number % 50, "seq": 1 + number // 50}), START)
    store = opened()
    await store.write([Window(START, "one", traffic)], [], NOW)
    (read,) = (await store.read(NOW)).windows
    tally = read.traffic.tallies[LEGAL]
    assert len(tally.shapes()) <= sum(KEPT)
    assert tally.total == pytest.approx(10_000)
    assert tally.error == pytest.approx(traffic.tallies[LEGAL].error, rel=0.1)
    assert skips.count == 0
    await store.close()


async def test_old_windows_and_costs_go(opened: Opened) -> None:
    """Neither is read, and a later write removes them."""
    store = opened()
    await store.write([window()], [cost()], NOW)
    later = NOW + KEPT_S
    assert not (await store.read(later)).windows
    await store.write([window(start=int(later))], [], later)
    assert [read.start for read in (await store.read(NOW)).windows] == []
    assert (await store.read(later)).costs
    await store.write([], [cost(batch=16)], NOW + COSTS_KEPT_S + 1)
    assert len((await store.read(NOW + COSTS_KEPT_S + 1)).costs) in (1, 2)  # Redis forgets a program as a whole
    await store.close()


async def test_the_newest_windows_are_read(opened: Opened) -> None:
    """However many there are."""
    store = opened()
    await store.write([window(start=START + WINDOW_S * number) for number in range(MOST_WINDOWS + 20)], [], NOW)
    starts = [read.start for read in (await store.read(NOW + WINDOW_S * 300)).windows]
    assert starts == [START + WINDOW_S * number for number in reversed(range(20, MOST_WINDOWS + 20))]
    await store.close()


async def test_a_window_of_the_future_is_not_believed(opened: Opened) -> None:
    """A worker whose clock is wrong does not outweigh the others for ever."""
    store = opened()
    await store.write([window(start=START + 10 * WINDOW_S)], [], NOW)
    assert not (await store.read(NOW)).windows
    await store.close()


async def test_names_of_any_kind_come_back(opened: Opened, skips: Skips) -> None:
    """Spaces, quotes, braces and letters of any script."""
    odd = Workload("mödel.1", (('a"b', "c:{d}"),), "any")
    store = opened()
    await store.write([window("host name {1}:ü", workload=odd)], [], NOW)
    (read,) = (await store.read(NOW)).windows
    assert (read.worker, list(read.traffic.tallies)) == ("host name {1}:ü", [odd])
    assert skips.count == 0
    await store.close()
