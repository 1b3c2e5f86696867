"""Python calls that wait for the device or order its streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from cachepolicy.reasons import RefusalReason
from service.backends.calls import Notes
from service.doctor.streams import Streams

# Where a function can be imported by name, what it calls is watched in its place. Not every build has every one.
_WAITS: Sequence[tuple[object, str, str]] = (
    (torch._C, "_cuda_synchronize", "torch.cuda.synchronize"),
    (torch._C, "_accelerator_synchronizeDevice", "torch.accelerator.synchronize"),
    (torch.cuda.Stream, "synchronize", "torch.cuda.Stream.synchronize"),
    (torch.cuda.Stream, "query", "torch.cuda.Stream.query"),
    (torch.cuda.Event, "synchronize", "torch.cuda.Event.synchronize"),
    (torch.cuda.Event, "query", "torch.cuda.Event.query"),
)


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
