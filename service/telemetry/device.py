"""What the driver tells of an NVIDIA device: memory, utilisation, clocks. Nothing where there is no such device."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import Any

import pynvml

from service.snapshot import DeviceReading

_FRESH_S = 1.0  # a driver call can take milliseconds, and several readers may ask


class DeviceMonitor:
    """Reads one device, at most once a second."""

    def __init__(self, uuid: str) -> None:
        """`uuid` as CUDA tells it, of a GPU or of a MIG slice; "" where there is no NVIDIA device."""
        self._handle: Any = None
        self._read_at = -_FRESH_S
        self._reading: DeviceReading | None = None
        if uuid:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlInit()
                self._handle = _handle(uuid)

    def read(self) -> DeviceReading | None:
        """The latest reading; None where the driver tells nothing."""
        if self._handle is not None and monotonic() - self._read_at >= _FRESH_S:
            self._read_at = monotonic()
            self._reading = self._read()
        return self._reading

    def _read(self) -> DeviceReading | None:
        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(self._handle)
        except pynvml.NVMLError:
            return None
        utilization, clocks = None, {}
        with suppress(pynvml.NVMLError):  # a MIG slice has none of its own
            utilization = pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
        for name, domain in (("sm", pynvml.NVML_CLOCK_SM), ("memory", pynvml.NVML_CLOCK_MEM)):
            with suppress(pynvml.NVMLError):
                clocks[name] = pynvml.nvmlDeviceGetClockInfo(self._handle, domain) * 1e6
        return DeviceReading(int(memory.used), int(memory.total), utilization, clocks)


def _handle(uuid: str) -> Any:
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError_NotFound:
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
