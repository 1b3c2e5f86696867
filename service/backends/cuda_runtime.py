"""The few calls of the CUDA runtime that torch does not offer."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch


def copier(destination: torch.Tensor, source: torch.Tensor, stream: torch.cuda.Stream) -> Callable[[], None]:
    """A call that copies all bytes of `source` on the stream. It holds addresses only.

    `Tensor.copy_` would note the stream on pinned memory, which then records an event when it is freed: on a lost device that ends the
    process in a destructor. This also takes a third of the time.
    """
    runtime = _runtime()
    call, kind = runtime.cudaMemcpyAsync, runtime.cudaMemcpyKind.cudaMemcpyDefault
    target, origin, size, handle = destination.data_ptr(), source.data_ptr(), source.nbytes, stream.cuda_stream

    def copy() -> None:
        _check(call(target, origin, size, kind, handle))

    return copy


def upload(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> None:
    """Send an instantiated graph to the device, so that its first launch need not."""
    runtime = _runtime()
    _check(runtime.cudaGraphUpload(runtime.cudaGraphExec_t(graph.raw_cuda_graph_exec()), stream.cuda_stream))


def count_nodes(graph: torch.cuda.CUDAGraph) -> int:
    """Number of nodes of a captured graph."""
    runtime = _runtime()
    *_, nodes = _check(runtime.cudaGraphGetNodes(runtime.cudaGraph_t(graph.raw_cuda_graph()), 0))
    return int(nodes)


def join_all(stream: torch.cuda.Stream) -> bool:
    """Make whatever was captured on other streams precede the end of this one's capture; tells whether anything was left to join.

    A capture that ends with unjoined work breaks off, and takes its pool with it.
    """
    runtime = _runtime()
    handle = stream.cuda_stream
    status, _, graph, joined, *_ = _check(runtime.cudaStreamGetCaptureInfo(handle))
    if status != runtime.cudaStreamCaptureStatus.cudaStreamCaptureStatusActive:
        return False
    *_, count = _check(runtime.cudaGraphGetNodes(graph, 0))
    nodes, *_ = _check(runtime.cudaGraphGetNodes(graph, count))
    *_, count = _check(runtime.cudaGraphGetEdges(graph, 0))
    origins, *_ = _check(runtime.cudaGraphGetEdges(graph, count))
    followed = {int(node) for node in (*origins, *joined)}
    left = [node for node in nodes if int(node) not in followed]
    if left:
        flag = runtime.cudaStreamUpdateCaptureDependenciesFlags.cudaStreamAddCaptureDependencies
        _check(runtime.cudaStreamUpdateCaptureDependencies(handle, left, None, len(left), int(flag)))
    return bool(left)


def _runtime() -> Any:
    return import_module("cuda.bindings.runtime")  # a dependency of torch's CUDA builds


def _check(result: tuple[Any, ...]) -> tuple[Any, ...]:
    if int(result[0]) != 0:
        raise RuntimeError(f"CUDA error: {result[0]!r}")
    return result[1:]
