"""The exact sizes that traffic has, by the bucket that they fall into or are served by. Written on the lane's thread, after the answer."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from cachepolicy.keys import GraphKey, Signature
from cachepolicy.profile import Tally, shape_of
from service.models.spec import Shape

_Sizes = tuple[tuple[str, int], ...]

_KEPT = 256  # sizes per bucket; when there are more, all counts are halved and those that vanish go


class Traffic:
    """Runs per bucket and exact size; recent ones weigh more where there are many sizes. Safe to use from several threads."""

    def __init__(self) -> None:
        self._counts: dict[GraphKey, dict[_Sizes, int]] = {}
        self._fresh: dict[Signature, Tally] = {}
        self._lock = threading.Lock()

    def note(self, key: GraphKey, shape: Shape) -> None:
        """One run of this size."""
        sizes = tuple(shape.items())
        with self._lock:
            counts = self._counts.setdefault(key, {})
            counts[sizes] = counts.get(sizes, 0) + 1
            while len(counts) > _KEPT:
                counts = self._counts[key] = {size: count // 2 for size, count in counts.items() if count > 1}
            fresh = self._fresh.get(key.signature)
            if fresh is None:
                fresh = self._fresh[key.signature] = Tally()
            fresh.add(shape_of(shape))

    def take(self) -> dict[Signature, Tally]:
        """What was counted since this was last called: for a profile that outlives the process."""
        with self._lock:
            fresh, self._fresh = self._fresh, {}
            return fresh

    def shapes(self, key: GraphKey, at_most: int) -> list[tuple[Shape, int]]:
        """The most frequent sizes of a bucket and their runs."""
        with self._lock:
            counts = list(self._counts.get(key, {}).items())
        counts.sort(key=lambda item: -item[1])
        return [(dict(sizes), count) for sizes, count in counts[:at_most]]

    def histogram(self, signature: Signature) -> dict[_Sizes, int]:
        """Runs per exact size of everything that was counted for a signature's own buckets."""
        return self.histograms().get(signature, {})

    def histograms(self) -> dict[Signature, dict[_Sizes, int]]:
        """The same for every signature."""
        with self._lock:
            noted = [(key.signature, list(counts.items())) for key, counts in self._counts.items()]
        found: dict[Signature, dict[_Sizes, int]] = {}
        for signature, counts in noted:
            runs = found.setdefault(signature, {})
            for sizes, count in counts:
                runs[sizes] = runs.get(sizes, 0) + count
        return found

    def forget(self, signatures: Iterable[Signature]) -> None:
        """These signatures are gone."""
        gone = set(signatures)
        with self._lock:
            self._counts = {key: counts for key, counts in self._counts.items() if key.signature not in gone}
