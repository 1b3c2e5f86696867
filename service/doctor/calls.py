"""Python calls that read the device, wait for it, or order its streams, without being operations of the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from cachepolicy.reasons import RefusalReason
from service.backends.watch import storage_of
from service.doctor.hostdata import HostData
from service.doctor.streams import Streams

_READS = {
    torch.Tensor.numpy: "Tensor.numpy",
    torch.Tensor.tolist: "Tensor.tolist",
    torch.Tensor.__array__: "Tensor.__array__",
}
_PRINTS = {torch.Tensor.__repr__: "Tensor.__repr__"}  # on a device only: the host's own are printed without harm
_INDEXING = {torch.Tensor.__getitem__: "Tensor.__getitem__", torch.Tensor.__setitem__: "Tensor.__setitem__"}

_INDEX_BYTES = 8

# Where a function can be imported by name, what it calls is watched in its place. Not every build has every one.
_WAITS: Sequence[tuple[object, str, str]] = (
    (torch._C, "_cuda_synchronize", "torch.cuda.synchronize"),
    (torch._C, "_accelerator_synchronizeDevice", "torch.accelerator.synchronize"),
    (torch.cuda.Stream, "synchronize", "torch.cuda.Stream.synchronize"),
    (torch.cuda.Stream, "query", "torch.cuda.Stream.query"),
    (torch.cuda.Event, "synchronize", "torch.cuda.Event.synchronize"),
    (torch.cuda.Event, "query", "torch.cuda.Event.query"),
)


class Notes(Protocol):
    """Who is told."""

    host: HostData

    def noted(self) -> int:
        """How many blockers were found so far."""
        ...

    def call_blocked(self, reason: RefusalReason, call: str, what: str = "", host: tuple[str, int] | None = None) -> None:
        """A Python call rules a recording out."""
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
            self._notes.host.read(storage_of(tensor))
        elif self._notes.noted() == before:  # where the call is carried out by an operation, that one was noted
            self._notes.call_blocked(RefusalReason.SYNC, call)


def _lists(index: Any) -> Iterator[list[Any]]:
    for entry in index if isinstance(index, tuple) else (index,):
        if isinstance(entry, list):
            yield entry


@contextmanager
def watch_waits(notes: Notes, waits: Sequence[tuple[Any, str, str]] = _WAITS) -> Iterator[None]:
    """Note each call that waits for the device or asks whether it is done, and carry it out all the same."""

    def noting(call: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*args: Any, **kwargs: Any) -> Any:
            notes.call_blocked(RefusalReason.SYNC, call)
            return original(*args, **kwargs)

        return wait

    with ExitStack() as restored:
        for owner, name, call in waits:
            if hasattr(owner, name):
                _replace(restored, owner, name, noting(call, getattr(owner, name)))
        yield


@contextmanager
def watch_streams(device: torch.device) -> Iterator[Streams | None]:
    """Follow events from stream to stream; None where the device has no streams."""
    if device.type != "cuda":
        yield None
        return
    streams = Streams(torch.cuda.current_stream(device).cuda_stream)
    record, wait = torch.cuda.Event.record, torch.cuda.Event.wait

    def recording(event: torch.cuda.Event, stream: torch.cuda.Stream | None = None) -> None:
        stream = torch.cuda.current_stream(device) if stream is None else stream
        streams.recorded(id(event), stream.cuda_stream)
        record(event, stream)

    def waiting(event: torch.cuda.Event, stream: torch.cuda.Stream | None = None) -> None:
        stream = torch.cuda.current_stream(device) if stream is None else stream
        streams.waited(stream.cuda_stream, id(event))
        wait(event, stream)

    with ExitStack() as restored:
        _replace(restored, torch.cuda.Event, "record", recording)
        _replace(restored, torch.cuda.Event, "wait", waiting)
        yield streams


def _replace(restored: ExitStack, owner: Any, name: str, substitute: Callable[..., Any]) -> None:
    restored.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, substitute)
