"""Opens the device that the configuration names."""

from __future__ import annotations

import torch

from service.backends.base import Backend
from service.backends.cpu import CpuBackend
from service.backends.cuda import CudaBackend
from service.errors import ConfigError


def open_backend(device: str, *, max_nodes: int | None = None) -> Backend:
    """`auto` takes the first GPU, or the CPU where there is none. Graphs of more than `max_nodes` are refused.

    Raises ConfigError where the device isn't there.
    """
    if device == "auto":
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return CpuBackend(max_nodes)
    kind, _, number = device.partition(":")
    if kind != "cuda" or not number.isdecimal():
        raise ConfigError(f"worker.device: {device!r} is none of auto, cpu, cuda:N")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number) >= found:
        raise ConfigError(f"worker.device: {device} isn't there; torch {torch.__version__} sees {found} CUDA devices")
    return CudaBackend(torch.device("cuda", int(number)), max_nodes)
