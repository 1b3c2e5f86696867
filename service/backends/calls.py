"""Python calls that hand values of the device to Python, or host memory to the device, without being operations of the dispatcher."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from cachepolicy.reasons import RefusalReason

_READS = {
    torch.Tensor.numpy: "Tensor.numpy",
    torch.Tensor.tolist: "Tensor.tolist",
    torch.Tensor.__array__: "Tensor.__array__",
}
_PRINTS = {torch.Tensor.__repr__: "Tensor.__repr__"}  # on a device only: the host's own are printed without harm
_INDEXING = {torch.Tensor.__getitem__: "Tensor.__getitem__", torch.Tensor.__setitem__: "Tensor.__setitem__"}

_INDEX_BYTES = 8


class Notes(Protocol):
    """Who is told."""

    def noted(self) -> int:
        """How many blockers were found so far."""
        ...

    def call_blocked(self, reason: RefusalReason, call: str, what: str = "", host: tuple[str, int] | None = None) -> None:
        """A Python call rules a recording out. `host`: what it takes to the device as text, and its bytes."""
        ...

    def host_read(self, tensor: torch.Tensor) -> None:
        """Python learned the values of a tensor in host memory."""
        ...


class Calls(TorchFunctionMode):
    """Sees tensor methods that hand values to Python."""

    def __init__(self, notes: Notes, device: str) -> None:
        super().__init__()
        self._notes = notes
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        before = self._notes.noted()
        result = func(*args, **(kwargs or {}))
        tensor = args[0] if args else None
        if func in _READS and isinstance(tensor, torch.Tensor):
            self._read(_READS[func], tensor, before)
        elif self._device != "cpu" and isinstance(tensor, torch.Tensor) and tensor.device.type == self._device:
            if func in _PRINTS:
                self._read(_PRINTS[func], tensor, before)
            elif func in _INDEXING and self._notes.noted() == before and (lists := list(_lists(args[1]))):
                count = sum(len(entry) for entry in lists)
                self._notes.call_blocked(
                    RefusalReason.CPU_TENSOR, _INDEXING[func], "copies a list of indices to the device", (str(lists), count * _INDEX_BYTES)
                )
        return result

    def _read(self, call: str, tensor: torch.Tensor, before: int) -> None:
        if tensor.device.type != self._device:
            self._notes.host_read(tensor)
        elif self._notes.noted() == before:  # where the call is carried out by an operation, that one was noted
            self._notes.call_blocked(RefusalReason.SYNC, call)


def _lists(index: Any) -> Iterator[list[Any]]:
    for entry in index if isinstance(index, tuple) else (index,):
        if isinstance(entry, list):
            yield entry
