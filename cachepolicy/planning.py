"""Search for a better set of graphs under a byte budget, one move at a time.

A move adds one graph and takes away what has to go for it. Its worth is exact: the change of the whole set's saving over the horizon,
less the captures it takes. Bytes are a function of each signature's set, so the same moves serve private pools, whose bytes add up, and
arenas, where the largest graph costs nearly all: there whole arenas, single graphs, or the top of a rebuilt arena make room.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush, merge
from itertools import count, islice
from math import inf
from operator import itemgetter

from cachepolicy.cache import GraphEntry
from cachepolicy.demand import Demand, neighbours
from cachepolicy.ladder import Pricing, candidates_of

_TRIED = 12  # candidates that need room made for them, best first
_CONSIDERED = 20  # candidates of a whole new set


@dataclass(slots=True, eq=False)  # not frozen: hundreds are made in a decision
class Unit:
    """Something that can be given up: graphs of one signature, or only the slack above an arena's largest graph."""

    holding: Holding
    positions: tuple[int, ...]
    frees: int  # bytes
    rate: float  # seconds saved per second that go with it
    once: float = 0.0  # seconds it costs at once: survivors captured again, less captures that are then not needed
    rebuild: bool = False


@dataclass(slots=True, eq=False)
class Holding:
    """The graphs of one signature, as they are and as planned."""

    demand: Demand
    entries: dict[int, GraphEntry] = field(default_factory=dict)  # as they are, by ladder position
    resident: list[int] = field(default_factory=list)  # as planned, ascending
    horizon_s: float = 0.0  # that its savings are counted over
    high: int = 0  # bytes of the arena, at its high-water mark
    rebuild: bool = False
    _units: list[Unit] | None = None
    _held: list[GraphEntry] = field(default_factory=list)
    _planned: bool = False

    def mirror(self, entries: list[GraphEntry], high: int) -> None:
        """Take over what is resident now."""
        if entries == self._held and high == self.high and not self._planned:
            return
        self._held, self._planned = entries, False
        position = self.demand.position
        self.entries = {position[entry.key.bucket]: entry for entry in entries if entry.key.bucket in position}
        self.resident = sorted(self.entries)
        self.high = high
        self.rebuild = False
        self.stale()

    def changed(self) -> None:
        """The plan for it changed."""
        self._planned = True
        self.stale()

    def stale(self) -> None:
        """The forecast, the prices or the set changed."""
        self._units = None

    def added_bytes(self, at: int) -> int:
        """What one more graph would take."""
        prices = self.demand.prices
        return prices.own[at] + max(0, prices.top[at] - self.high)

    def capture_s(self, at: int) -> float:
        """Seconds to capture a graph, none where it is resident and was only planned to go."""
        return 0.0 if at in self.entries else self.demand.prices.capture[at]

    def movable(self, at: int) -> bool:
        """Whether the graph may go now."""
        entry = self.entries.get(at)
        return entry is None or not (entry.pinned or entry.in_use)

    def units(self) -> list[Unit]:
        """What this signature could give up."""
        if self._units is None:
            self._units = list(self._find_units(self.resident, ()))
        return self._units

    def units_beside(self, at: int) -> list[Unit]:
        """What it could give up once `at` was added."""
        planned = list(self.resident)
        insort(planned, at)
        return list(self._find_units(planned, (at,)))

    def _find_units(self, planned: list[int], kept: Collection[int]) -> Iterable[Unit]:
        prices, demand = self.demand.prices, self.demand
        high = max(self.high, *(prices.top[at] for at in kept)) if kept else self.high
        alone = len(planned) == 1
        movable = [self.movable(at) for at in planned]
        free = all(movable)
        second, first = sorted([0, 0, *(prices.top[at] for at in planned)])[-2:]
        for index, at in enumerate(planned):
            if at in kept or not movable[index]:
                continue
            below = planned[index - 1] if index else -1
            above = planned[index + 1] if index + 1 < len(planned) else None
            rate = demand.gain(below, at, above)
            once = 0.0 if at in self.entries else -prices.capture[at]
            yield Unit(self, (at,), prices.own[at] + (high if alone else 0), rate, once)
            if free and not alone and prices.top[at] == first and second < high:
                again = sum(prices.capture[other] for other in self.entries if other in planned and other != at)
                yield Unit(self, (at,), prices.own[at] + high - second, rate, once + again, rebuild=True)
        if free and high and not alone and planned:
            slack = high - first
            if slack > 0:
                yield Unit(self, (), slack, 0.0, sum(prices.capture[at] for at in self.entries if at in planned), rebuild=True)
            if not kept:
                refund = sum(prices.capture[at] for at in planned if at not in self.entries)
                yield Unit(self, tuple(planned), sum(prices.own[at] for at in planned) + high, demand.saving(planned), -refund)


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """One graph more, and what goes for it."""

    holding: Holding
    at: int
    victims: tuple[Unit, ...]
    net_s: float  # over the horizon


_Offer = tuple[float, float, Unit]  # seconds lost per byte, seconds lost, what is given up


_density = itemgetter(0)


def _cheapest_one(own: list[_Offer], others: list[_Offer], need: int) -> list[Unit]:
    """The single unit that frees enough at the least loss."""
    found: Unit | None = None
    least = inf
    for offers in (own, others):
        for density, price, unit in offers:
            if density * need >= least:
                break  # whatever follows and frees enough costs more
            if unit.frees >= need and price < least:
                found, least = unit, price
    return [] if found is None else [found]


class Plan:
    """A set of graphs that is being improved. `used` are the bytes it takes."""

    def __init__(
        self, holdings: Collection[Holding], used: int, budget: int, hysteresis: float, *, returning: bool = False, since: float = inf
    ) -> None:
        """`returning`: what goes will be captured again, which is charged to the move. What was captured after `since` stays."""
        self._holdings = holdings
        self._used = used
        self._budget = budget
        self._hysteresis = hysteresis
        self._returning = returning
        self._since = since
        self._pool: tuple[Holding, list[_Offer]] | None = None

    def best_move(self, focus: Holding, allowed: Callable[[int], bool]) -> Move | None:
        """The best single move for one signature that is worth its capture; None where there is none."""
        demand, capture = focus.demand, focus.demand.prices.capture
        wanted: list[tuple[float, int]] = []
        for at, below, gained in demand.additions(focus.resident):
            if gained > 0.0:
                worth = focus.horizon_s * gained - (0.0 if at in focus.entries else capture[at])
                if worth > 0.0 and demand.seen(below, at) > 1 and demand.prices.bytes((at,)) <= self._budget:
                    wanted.append((worth, at))
        wanted.sort(reverse=True)
        best: Move | None = None
        for worth, at in islice((each for each in wanted if allowed(each[1])), _TRIED):
            if best is not None and worth <= best.net_s:
                break
            move = self._with_room(focus, at, worth)
            if (
                move is not None
                and move.net_s > (self._hysteresis * capture[at] if move.victims else 0.0)
                and (best is None or move.net_s > best.net_s)
            ):
                best = move
        return best

    def apply(self, move: Move) -> None:
        """Make the move part of the plan."""
        self._pool = None
        for unit in move.victims:
            holding = unit.holding
            before = self._bytes(holding)
            for at in unit.positions:
                if at in holding.resident:
                    holding.resident.remove(at)
            if unit.rebuild or not holding.resident:
                holding.rebuild = unit.rebuild and bool(holding.resident)
                holding.high = max((holding.demand.prices.top[at] for at in holding.resident), default=0)
            holding.changed()
            self._used += self._bytes(holding) - before
        focus = move.holding
        self._used += focus.added_bytes(move.at)
        focus.high = max(focus.high, focus.demand.prices.top[move.at])
        insort(focus.resident, move.at)
        focus.changed()

    def reshape(self, focus: Holding, allowed: Callable[[int], bool]) -> bool:
        """Replace a signature's whole set where a better one takes no more than its own and the free bytes; whether that was done.

        Finds what single moves cannot: two graphs for one, a lower top and more graphs below it.
        """
        demand = focus.demand
        room = self._budget - self._used + self._bytes(focus)
        candidates = [at for at in candidates_of(demand, focus.resident, _CONSIDERED) if at in focus.entries or allowed(at)]
        if not candidates or room <= 0:
            return False
        fixed = {at for at in focus.resident if not focus.movable(at)}
        best = focus.resident
        best_net = self._net(focus, best) + self._hysteresis * min(demand.prices.capture[at] for at in candidates)
        for found in Pricing(demand, focus.horizon_s, focus.capture_s, candidates).within(room):
            if fixed and max(demand.prices.top[at] for at in found) < focus.high:
                continue  # a rebuild would take all
            if fixed.issubset(found) and self._repeats(focus, found) and (net := self._net(focus, found)) > best_net:
                best, best_net = found, net
        if best is focus.resident:
            return False
        self._pool = None
        before = self._bytes(focus)
        top = max(demand.prices.top[at] for at in best)
        kept = any(at in focus.entries for at in best)
        focus.rebuild = focus.rebuild or (kept and top < focus.high)
        focus.resident, focus.high = best, top
        focus.changed()
        self._used += self._bytes(focus) - before
        return True

    @staticmethod
    def _repeats(focus: Holding, planned: list[int]) -> bool:
        """Whether each new graph would have served more than one run: one-shot shapes are never captured."""
        pairs = zip((-1, *planned), planned, strict=False)
        return all(at in focus.entries or focus.demand.seen(below, at) > 1 for below, at in pairs)

    def _net(self, focus: Holding, planned: list[int]) -> float:
        """Seconds over the horizon, less the captures it takes."""
        prices = focus.demand.prices
        net = focus.horizon_s * focus.demand.saving(planned) - sum(focus.capture_s(at) for at in planned)
        if planned and max(prices.top[at] for at in planned) < focus.high:
            net -= sum(prices.capture[at] for at in planned if at in focus.entries)
        return net

    @staticmethod
    def _bytes(holding: Holding) -> int:
        return sum(holding.demand.prices.own[at] for at in holding.resident) + holding.high

    def _with_room(self, focus: Holding, at: int, worth: float) -> Move | None:
        need = self._used + focus.added_bytes(at) - self._budget
        if need <= 0:
            return Move(focus, at, (), worth)
        own = sorted(self._offers(focus, focus.units_beside(at)), key=_density) if focus.resident else []
        others = self._others(focus)
        best: Move | None = None
        for victims in (self._cheapest_set(focus, at, own, others, need), _cheapest_one(own, others, need)):
            if victims:
                net = worth - self._loss(focus, at, victims)
                if best is None or net > best.net_s:
                    best = Move(focus, at, tuple(victims), net)
        return best

    def _others(self, focus: Holding) -> list[_Offer]:
        """What all other signatures could give up, worked out once between two changes."""
        if self._pool is None or self._pool[0] is not focus:
            offers = [offer for holding in self._holdings if holding is not focus for offer in self._offers(holding, holding.units())]
            offers.sort(key=_density)
            self._pool = focus, offers
        return self._pool[1]

    def _offers(self, holding: Holding, units: Iterable[Unit]) -> list[_Offer]:
        """What units of one signature cost."""
        horizon_s, returning = holding.horizon_s, self._returning
        offers = []
        if self._since < inf:
            fresh = {at for at, entry in holding.entries.items() if entry.captured_at > self._since}
            units = [unit for unit in units if fresh.isdisjoint(unit.positions)] if fresh else units
        for unit in units:
            price = horizon_s * unit.rate + (self._once(unit) if returning else unit.once)
            offers.append((price / unit.frees if unit.frees else inf, price, unit))
        return offers

    def _once(self, unit: Unit) -> float:
        if not self._returning:
            return unit.once
        holding = unit.holding
        return unit.once + sum(holding.demand.prices.capture[at] for at in unit.positions if at in holding.entries)

    def _price(self, unit: Unit) -> float:
        return unit.holding.horizon_s * unit.rate + self._once(unit)

    def _cheapest_set(self, focus: Holding, at: int, own: list[_Offer], others: list[_Offer], need: int) -> list[Unit]:
        """Least loss per byte first, each loss as it is once the former are gone; what turned out not to be needed is kept after all."""
        left = {id(focus): sorted((*focus.resident, at))}
        dearer: list[tuple[float, int, Unit]] = []  # put off, at their loss by now
        offered = merge(own, others, key=_density)
        upcoming = next(offered, None)
        ticket = count()
        chosen: list[Unit] = []
        rebuilt: set[int] = set()
        freed = 0
        while freed < need:
            if dearer and (upcoming is None or dearer[0][0] <= upcoming[0]):
                density, _, unit = heappop(dearer)
            elif upcoming is not None and upcoming[2].frees:
                density, _, unit = upcoming
                upcoming = next(offered, None)
            else:
                return []
            holding = unit.holding
            remaining = left.setdefault(id(holding), holding.resident)
            if not set(unit.positions).issubset(remaining) or (unit.rebuild and id(holding) in rebuilt):
                continue
            if len(unit.positions) == 1 and remaining is not holding.resident:
                below, above = neighbours(remaining, unit.positions[0])
                now = (holding.horizon_s * holding.demand.gain(below, unit.positions[0], above) + self._once(unit)) / unit.frees
                if now > density:
                    heappush(dearer, (now, next(ticket), unit))
                    continue
            if unit.rebuild:
                rebuilt.add(id(holding))
            left[id(holding)] = [other for other in remaining if other not in unit.positions]
            chosen.append(unit)
            freed += unit.frees
        for unit in sorted(chosen, key=self._price, reverse=True):
            if freed - unit.frees >= need:
                chosen.remove(unit)
                freed -= unit.frees
        return chosen

    def _loss(self, focus: Holding, at: int, victims: Collection[Unit]) -> float:
        """Seconds over the horizon, exact where several victims are neighbours."""
        loss = 0.0
        own: set[int] = set()
        others: dict[int, tuple[Holding, set[int]]] = {}
        for unit in victims:
            loss += self._once(unit)
            if unit.holding is focus:
                own.update(unit.positions)
            else:
                others.setdefault(id(unit.holding), (unit.holding, set()))[1].update(unit.positions)
        for holding, gone in others.values():
            loss += holding.horizon_s * self._lost_rate(holding, list(holding.resident), gone)
        if own:
            planned = list(focus.resident)
            insort(planned, at)
            loss += focus.horizon_s * self._lost_rate(focus, planned, own)
        return loss

    @staticmethod
    def _lost_rate(holding: Holding, planned: list[int], gone: set[int]) -> float:
        demand = holding.demand
        if len(gone) == 1:
            (at,) = gone
            below, above = neighbours(planned, at)
            return demand.gain(below, at, above)
        return demand.saving(planned) - demand.saving([at for at in planned if at not in gone])
