"""What a store holds, and what it must do. Nothing in it is ever needed to serve.

Each worker writes only counts of its own, absolute ones, under its own name: a write may be repeated, and one that timed out may have
landed. Readers sum over workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cachepolicy.keys import Signature, digest
from cachepolicy.profile import Shape, TrafficProfile

SCHEMA = 1  # a part of every key and file name: versions live side by side and don't read each other
WINDOW_S = 600  # traffic is counted by windows of so many seconds of the epoch
HALF_LIFE_S = 3600.0  # what is so old counts half
KEPT_S = 48 * 3600  # a window is kept for so long
COSTS_KEPT_S = 30 * 24 * 3600
MOST_WINDOWS = 256  # are read, newest first
MOST_PROGRAMS = 256


@dataclass(frozen=True, slots=True)
class Window:
    """What one start of a worker has counted from `start` (seconds of the epoch) on."""

    start: int
    worker: str
    traffic: TrafficProfile


@dataclass(frozen=True, slots=True)
class CostRecord:
    """What was measured for one bucket: seconds and bytes. `model` and `device` are for people."""

    environment: str
    program: str  # `program_of` the signature
    bucket: Shape
    eager_s: float
    replay_s: float
    capture_s: float
    bytes: int
    arena_bytes: int
    model: str = ""
    device: str = ""


@dataclass(frozen=True, slots=True)
class Contents:
    """All that was read; records that are not valid were skipped and counted."""

    windows: Sequence[Window]
    costs: Sequence[CostRecord]


class StoreError(Exception):
    """The store could not be read or written; the message names no secret."""


class ProfileStore(Protocol):
    """A place that workers share. Every method raises StoreError, and is tried once."""

    async def read(self, now: float) -> Contents:
        """Recent windows of all workers, and costs."""
        ...

    async def write(self, windows: Sequence[Window], costs: Sequence[CostRecord], now: float) -> None:
        """Replace these windows and records; drops what is too old."""
        ...

    async def close(self) -> None:
        """Let go of it."""
        ...


def program_of(signature: Signature) -> str:
    """Names everything of a signature that costs depend on, the environment apart."""
    return digest([signature.program, signature.variant, signature.phase, signature.datatypes, signature.compile])
