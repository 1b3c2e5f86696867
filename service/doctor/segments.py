"""What lies between the blockers of a step, and how much of it each blocker keeps out of a graph."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate, pairwise

from service.doctor.tracing import Found, Trace


@dataclass(frozen=True, slots=True)
class Segment:
    """Operations [first, end) of a run, of which `working` launch work."""

    first: int
    end: int
    working: int
    modules: tuple[str, ...]  # paths in the order of their first operation
    lines: tuple[str, str]  # where it begins and ends


class Extent:
    """Counts the operations of a run that launch work."""

    def __init__(self, trace: Trace) -> None:
        self._before = [0, *accumulate(int(operation.works) for operation in trace.operations)]

    def working(self, first: int, end: int) -> int:
        """Those of [first, end)."""
        return self._before[end] - self._before[first]

    @property
    def total(self) -> int:
        """All of them."""
        return self._before[-1]


def bound_by_values(trace: Trace, other: Trace) -> frozenset[int]:
    """Operations that another run on other values does not repeat alike: other sizes, other operands, or not at all."""
    if trace.operations == other.operations:
        return frozenset()
    ours, theirs = (list(run.operations) for run in (trace, other))
    repeated = {
        at
        for block in SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
        for at in range(block.a, block.a + block.size)
    }
    return frozenset(range(len(ours))) - repeated


def segments(trace: Trace, bound: frozenset[int]) -> list[Segment]:
    """The runs of operations without a blocker, the largest first; none that launches no work."""
    cuts = sorted({(found.first, found.end) for found in trace.found} | {(at, at + 1) for at in bound})
    cuts = [(0, 0), *cuts, (len(trace.operations), len(trace.operations))]
    extent = Extent(trace)
    pieces, reached = [], 0
    for (_, end), (first, _) in pairwise(cuts):
        reached = max(reached, end)
        if extent.working(reached, max(reached, first)):
            pieces.append(_segment(trace, extent, reached, first))
    return sorted(pieces, key=lambda piece: -piece.working)


def kept_out(trace: Trace) -> list[int]:
    """For each blocker: the operations from it to the next one, which a graph that begins with the step does not reach for its sake."""
    extent = Extent(trace)
    starts = [found.first for found in trace.found]
    ends = sorted({*starts, len(trace.operations)})
    return [extent.working(start, ends[bisect_left(ends, start) + 1] if start < ends[-1] else start) for start in starts]


def _segment(trace: Trace, extent: Extent, first: int, end: int) -> Segment:
    inside = trace.operations[first:end]
    modules = tuple(dict.fromkeys(operation.module for operation in inside if operation.module))
    working = [operation for operation in inside if operation.works]
    lines = (str(working[0].place or ""), str(working[-1].place or ""))
    return Segment(first, end, extent.working(first, end), modules, lines)


def merged(found: Sequence[Found], shares: Sequence[int]) -> list[tuple[Found, int, int]]:
    """One entry for each operation at one place in one module: the first time it was met, how often, and all that it keeps out."""
    order: dict[object, list[int]] = {}
    for at, entry in enumerate(found):
        order.setdefault(entry.blocker, []).append(at)
    return [(found[places[0]], len(places), sum(shares[at] for at in places)) for places in order.values()]
