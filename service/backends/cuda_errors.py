"""What an exception of a CUDA step means: the device is lost, memory ran out, or why the capture failed."""

from __future__ import annotations

import traceback
from collections.abc import Mapping

import torch

from cachepolicy.reasons import RefusalReason
from service.backends.blockers import Blocker
from service.errors import DeviceLost, GraphcacheError, ModelRaised, OutOfDeviceMemory, said

# The runtime's own words; error codes are not exposed by all versions of torch that are supported.
_CAPTURE_FAILURES = (
    ("unjoined work", RefusalReason.UNJOINED_STREAM),
    ("legacy stream", RefusalReason.DEFAULT_STREAM),
    ("uncaptured work in another stream", RefusalReason.DEFAULT_STREAM),
    ("operation not permitted when stream is capturing", RefusalReason.SYNC),
    ("outside graph capture", RefusalReason.RNG),
    ("generator", RefusalReason.RNG),
)


def is_lost(error: BaseException, stream: torch.cuda.Stream) -> bool:
    """Whether the device answers no more: an error of the runtime that comes back at each call."""
    if not (isinstance(error, torch.AcceleratorError) or "CUDA error" in said(error)):
        return False
    for _ in range(2):  # an error that is not sticky is reported once
        try:
            stream.synchronize()
        except RuntimeError:
            continue
        return False
    return True


def eager_error(error: Exception, stream: torch.cuda.Stream) -> GraphcacheError:
    """What to raise where an eager run raised `error`. The memory that its frames hold is given back."""
    traceback.clear_frames(error.__traceback__)
    if isinstance(error, GraphcacheError):
        return error
    if isinstance(error, torch.OutOfMemoryError):
        return OutOfDeviceMemory(_first_line(error))
    if is_lost(error, stream):
        return DeviceLost(_first_line(error))
    return ModelRaised(error)


def capture_error(error: Exception, stream: torch.cuda.Stream, paths: Mapping[int, str]) -> GraphcacheError:
    """What to raise where warm-up or capture raised `error`; `paths` are the model's parts by their ids.

    The error lets go of its frames: their local variables would keep device memory until somebody drops the refusal, or until the
    collector finds it.
    """
    meaning: GraphcacheError
    if isinstance(error, GraphcacheError) and not isinstance(error, ModelRaised):
        meaning = error
    elif is_lost(error, stream):
        meaning = DeviceLost(_first_line(error))
    else:
        meaning = Blocker.of_error(_capture_failure(error), error, paths).refusal()
    traceback.clear_frames(error.__traceback__)
    error.__traceback__ = None
    return meaning


def _capture_failure(error: Exception) -> RefusalReason:
    if isinstance(error, torch.OutOfMemoryError):
        return RefusalReason.OUT_OF_MEMORY
    if isinstance(error, RuntimeError):
        for words, reason in _CAPTURE_FAILURES:
            if words in said(error):
                return reason
    return RefusalReason.CAPTURE_ERROR


def _first_line(error: BaseException) -> str:
    """The runtime appends advice on debugging to what happened."""
    return said(error).partition("\n")[0]
