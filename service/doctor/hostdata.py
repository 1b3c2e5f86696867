"""Where tensors in host memory come from and who else uses them: only one that the host neither reads nor changes can be moved."""

from __future__ import annotations

from collections.abc import Iterable


class HostData:
    """What a step did with the storages that live in host memory while the model lives on a device.

    A storage is movable if it was made from constants alone, or held by the model, and if no operation reads its values into Python or
    writes to it. Reading what was computed from it counts as reading it.
    """

    def __init__(self, held: Iterable[int]) -> None:
        self._sources: dict[int, set[int]] = {storage: set() for storage in held}
        self._faults: dict[int, str] = {}

    def made(self, storage: int, sources: Iterable[int], fault: str = "") -> None:
        """An operation made this storage from others; `fault` says what is wrong with it from the start."""
        self._sources.setdefault(storage, set()).update(source for source in sources if source != storage)
        if fault:
            self._faults.setdefault(storage, fault)

    def read(self, storage: int) -> None:
        """Python learned its values."""
        for source in self._family(storage):
            self._faults.setdefault(source, "the host reads it")

    def changed(self, storage: int) -> None:
        """An operation wrote to it."""
        self._faults.setdefault(storage, "the host changes it")

    def fault(self, storage: int) -> str:
        """Why it can't be moved; empty where it can."""
        family = self._family(storage)
        found = next((self._faults[source] for source in family if source in self._faults), "")
        return found or ("" if family <= self._sources.keys() else "it was made outside the step")

    def _family(self, storage: int) -> set[int]:
        """The storage and all it was computed from."""
        found, waiting = set(), [storage]
        while waiting:
            current = waiting.pop()
            if current not in found:
                found.add(current)
                waiting += self._sources.get(current, ())
        return found
