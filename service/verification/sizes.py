"""Which sizes below a bucket a proof tries."""

from __future__ import annotations

from collections.abc import Collection

_ALL = 16  # up to this bucket size every smaller size is tried
_SPREAD = 24  # sizes that are tried of a larger one
_NAMED = 24  # and at most so many that the model's code names


def sizes_below(size: int, named: Collection[int] = ()) -> list[int]:
    """Sizes to try below a bucket's: both ends first; all of them where there are few. `named` are integers of the model's code."""
    if size <= _ALL:
        wanted = set(range(1, size))
    else:
        powers = {2**n + step for n in range(1, size.bit_length()) for step in (-1, 0, 1)}
        even = {1 + (size - 2) * at // (_SPREAD // 2) for at in range(_SPREAD // 2 + 1)}
        near = sorted((powers | even) & set(range(1, size)), key=lambda n: (n not in even, -n))
        wanted = {1, size - 1, *near[: _SPREAD - 2]}
        wanted.update(_named_below(size, named, wanted))
    return list(dict.fromkeys([*ends(size), *sorted(wanted)]))


def ends(size: int) -> list[int]:
    """The largest and the smallest size below a bucket's."""
    return list(dict.fromkeys(end for end in (size - 1, 1) if 0 < end < size))


def _named_below(size: int, named: Collection[int], known: Collection[int]) -> list[int]:
    """A branch at a size that the code names is taken there, just below, or just above: all of them, then the nearest neighbours."""
    below = [number for number in sorted(named, reverse=True) if number <= size]
    wanted = [*below, *(number - 1 for number in below), *(number + 1 for number in below)]
    return [number for number in dict.fromkeys(wanted) if 0 < number < size and number not in known][:_NAMED]
