"""Buckets: the few padded shapes that graphs exist for, and the smallest of them that covers a request."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod


@dataclass(frozen=True, slots=True)
class Bucket:
    """A padded shape by named axes, e.g. batch=4,seq=64. Axes keep the model's order."""

    sizes: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, **sizes: int) -> Bucket:
        """Write a bucket as keywords: `Bucket.of(batch=4, seq=64)`."""
        return cls(tuple(sizes.items()))

    def __getitem__(self, axis: str) -> int:
        for name, size in self.sizes:
            if name == axis:
                return size
        raise KeyError(axis)

    def as_dict(self) -> dict[str, int]:
        """Axis to size."""
        return dict(self.sizes)

    @property
    def volume(self) -> int:
        """Number of padded elements: the product of the sizes."""
        return prod(size for _, size in self.sizes)

    def covers(self, shape: Mapping[str, int]) -> bool:
        """Whether every axis of `shape` fits."""
        return all(shape[name] <= size for name, size in self.sizes)

    def padding_ratio(self, real_volume: int) -> float:
        """Padded elements per real element: 0.0 when the bucket is full."""
        return self.volume / real_volume - 1.0 if real_volume else 0.0

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.sizes)


@dataclass(frozen=True, slots=True)
class BucketLadder:
    """A grid of sizes per axis; sizes are ascending and the last is the axis' maximum."""

    axes: tuple[tuple[str, tuple[int, ...]], ...]
    _buckets: dict[tuple[int, ...], Bucket] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, sizes in self.axes:
            if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
                raise ValueError(f"axis {name}: sizes must be ascending positive numbers, got {sizes}")

    @classmethod
    def of(cls, **sizes: tuple[int, ...]) -> BucketLadder:
        """Write a ladder as keywords: `BucketLadder.of(batch=(1, 2, 4), seq=(32, 64))`."""
        return cls(tuple(sizes.items()))

    def fit(self, shape: Mapping[str, int]) -> Bucket | None:
        """The smallest bucket that covers `shape`, or None where an axis is larger than its last size."""
        chosen: list[int] = []
        for name, sizes in self.axes:
            at = bisect_left(sizes, shape[name])
            if at == len(sizes):
                return None
            chosen.append(sizes[at])
        return self._bucket(tuple(chosen))

    def buckets(self) -> Iterator[Bucket]:
        """All buckets of the grid, smallest first."""
        grid = sorted(product(*(sizes for _, sizes in self.axes)), key=lambda sizes: (prod(sizes), sizes))
        yield from (self._bucket(sizes) for sizes in grid)

    def _bucket(self, sizes: tuple[int, ...]) -> Bucket:
        """One object per bucket, so that equality and hashing on the request path stay cheap."""
        found = self._buckets.get(sizes)
        if found is None:
            found = self._buckets.setdefault(sizes, Bucket(tuple((name, s) for (name, _), s in zip(self.axes, sizes, strict=True))))
        return found


def default_sizes(maximum: int) -> tuple[int, ...]:
    """Sizes for `buckets: auto` before traffic is known: powers of two, and the maximum itself."""
    sizes = []
    size = 1
    while size < maximum:
        sizes.append(size)
        size *= 2
    return (*sizes, maximum)


def vllm_sizes(largest: int) -> tuple[int, ...]:
    """Batch sizes that vLLM captures by default: 1, 2, 4, every eighth to 256, every sixteenth above."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    return tuple(size for size in sizes if size <= largest)
