"""Which sizes below a bucket a proof tries."""

from __future__ import annotations

_ALL = 16  # up to this bucket size every smaller size is tried
_SPREAD = 24  # sizes that are tried of a larger one


def sizes_below(size: int) -> list[int]:
    """Sizes to try below a bucket's: both ends first; all of them where there are few."""
    if size <= _ALL:
        wanted = set(range(1, size))
    else:
        powers = {2**n + step for n in range(1, size.bit_length()) for step in (-1, 0, 1)}
        even = {1 + (size - 2) * at // (_SPREAD // 2) for at in range(_SPREAD // 2 + 1)}
        near = sorted((powers | even) & set(range(1, size)), key=lambda n: (n not in even, -n))
        wanted = {1, size - 1, *near[: _SPREAD - 2]}
    return list(dict.fromkeys([*ends(size), *sorted(wanted)]))


def ends(size: int) -> list[int]:
    """The largest and the smallest size below a bucket's."""
    return list(dict.fromkeys(end for end in (size - 1, 1) if 0 < end < size))
