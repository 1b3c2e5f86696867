"""Opens the device that the configuration names."""

from __future__ import annotations

import torch

from service.backends.base import Backend
from service.backends.cpu import CpuBackend
from service.errors import ConfigError


def open_backend(device: str) -> Backend:
    """`auto` takes the first GPU, or the CPU where there is none. Raises ConfigError where the device isn't there."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return CpuBackend()
    raise ConfigError(f"device {device!r} isn't there")
