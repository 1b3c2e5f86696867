"""Private pools of the CUDA allocator, by arena: which graphs live in them, and what they take.

A pool's handle can't be used again once the pool emptied, nor for another capture after one in it broke off: then the arena goes on
in a pool of its own beside those that still hold graphs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch

from service.backends.base import DeviceMemory

Handle = torch.cuda._POOL_HANDLE


@dataclass(slots=True)
class _Arena:
    current: Handle | None = None  # where the next capture goes
    graphs: Counter[Handle] = field(default_factory=Counter)


class Pools:
    """Book of all pools on a device. Used under the capture lock only."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._arenas: dict[str, _Arena] = {}

    def open(self, arena: str) -> Handle:
        """The pool that the arena's next capture goes to."""
        entry = self._arenas.setdefault(arena, _Arena())
        if entry.current is None:
            entry.current = torch.cuda.graph_pool_handle()
        return entry.current

    def join(self, arena: str, pool: Handle) -> None:
        """A graph lives in the pool from now on."""
        self._arenas[arena].graphs[pool] += 1

    def leave(self, arena: str, pool: Handle) -> None:
        """A graph of the pool was destroyed; what an emptied pool held goes back to the device."""
        entry = self._arenas[arena]
        entry.graphs[pool] -= 1
        self._tidy(arena, pool)

    def abandon(self, arena: str, pool: Handle, *, spoiled: bool) -> None:
        """A capture into the pool failed; `spoiled` when it broke off, so that the handle is of no more use."""
        if spoiled and self._arenas[arena].current == pool:
            self._arenas[arena].current = None
        self._tidy(arena, pool)

    def nbytes(self, arena: str) -> int:
        """Bytes that the arena's pools hold of the device; 0 where it has none."""
        entry = self._arenas.get(arena)
        return sum(_pool_bytes(pool) for pool in entry.graphs) if entry else 0

    def _tidy(self, arena: str, pool: Handle) -> None:
        entry = self._arenas[arena]
        if entry.graphs[pool] > 0:
            return
        del entry.graphs[pool]
        if entry.current == pool:
            entry.current = None
        if not entry.graphs:
            del self._arenas[arena]
        torch.cuda.empty_cache()


def _pool_bytes(pool: Handle) -> int:
    segments = torch.cuda.memory_snapshot(pool, include_traces=False)  # type: ignore[no-untyped-call]
    return sum(segment["total_size"] for segment in segments if tuple(segment["segment_pool_id"]) == pool)


def device_memory(device: torch.device) -> DeviceMemory:
    """What the driver says is free, and what the allocator holds."""
    free, total = torch.cuda.mem_get_info(device)
    detail = {"allocated": torch.cuda.memory_allocated(device), "reserved": torch.cuda.memory_reserved(device)}
    return DeviceMemory(free, total, detail)
