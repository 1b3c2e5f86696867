"""One capture: from a step on static tensors to a graph that can be launched. The ways to fail, and how to leave nothing behind.

Captures are thread-local and one at a time per process. Nothing here waits for the whole device: that would break a capture.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from cachepolicy.reasons import RefusalReason
from service.backends.blockers import Blocker
from service.backends.cuda_memory import Handle
from service.backends.cuda_runtime import join_all
from service.errors import told

CAPTURE_LOCK = threading.Lock()  # held for each capture and each destruction of a graph in this process

_MODE = "thread_local"
_broken: list[torch.cuda.CUDAGraph] = []  # the pinned-memory allocator keeps pointers to captures that broke off


class CaptureFailed(Exception):
    """A capture ended without a graph. `spoiled`: it broke off, and its pool's handle is of no more use."""

    def __init__(self, cause: Exception, *, spoiled: bool) -> None:
        super().__init__(f"capture failed: {told(cause)}")
        self.cause = cause
        self.spoiled = spoiled


def capture(step: Callable[[], object], stream: torch.cuda.Stream, pool: Handle) -> torch.cuda.CUDAGraph:
    """Capture the step on the current stream, which must be `stream`; the lock must be held. Raises CaptureFailed."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    failure: Exception | None = None
    ended = False
    torch.clear_autocast_cache()  # a cast weight of before must be made anew, one made inside must not be found after
    _clear_workspaces()
    with _collector_off():
        try:
            graph.capture_begin(pool=pool, capture_error_mode=_MODE)
            try:
                step()
            except Exception as error:  # noqa: BLE001 - the model's code: told as it is, after cleaning up
                failure = error
            torch.cuda.set_stream(stream)  # wherever the model's code left off
            with suppress(Exception):  # a capture that broke off can not be asked; whatever happens here, it must be ended
                if join_all(stream) and failure is None:
                    failure = Blocker(RefusalReason.UNJOINED_STREAM, what="work on a side stream is not waited for").refusal()
            graph.capture_end()
            ended = True
        except Exception as error:  # noqa: BLE001 - likewise
            failure = failure or error
    torch.clear_autocast_cache()
    if failure is None:
        _clear_workspaces()
        return graph
    torch.cuda.set_stream(stream)
    graph.reset()
    if not ended:
        _broken.append(graph)
        _release(stream.device.index, pool)
        _repair_generator()
    _clear_workspaces()
    raise CaptureFailed(failure, spoiled=not ended)


def _clear_workspaces() -> None:
    """Before: the graph's workspace shall come from its own pool. After: nobody else shall use what belongs to the graph."""
    torch._C._cuda_clearCublasWorkspaces()


@contextmanager
def _collector_off() -> Iterator[None]:
    """The collector might destroy some other graph in this thread, which breaks the capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _release(device: int, pool: Handle) -> None:
    """Give back what a capture that broke off holds of its pool, unless the graph's reset did so itself."""
    try:
        torch._C._cuda_endAllocateToPool(device, pool)
    except RuntimeError:
        return
    torch._C._cuda_releasePool(device, pool)


def _repair_generator() -> None:
    """A capture that broke off leaves the default generator in its capture; one that succeeds takes it out."""
    scratch = torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=torch.cuda.graph_pool_handle(), capture_error_mode=_MODE)
    scratch.zero_()
    graph.capture_end()
    graph.reset()
