"""What a backend must do: run a step eagerly, and record it once for a bucket to replay it many times. Imports no torch.

Tensors cross this border as host memory: a `Batch` of parts goes in, one dict of outputs per part comes back. How they reach the
device is the backend's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from cachepolicy.buckets import Bucket
from cachepolicy.keys import Environment
from cachepolicy.reasons import RefusalReason
from service.errors import CaptureRefused
from service.models.spec import Shape, Variant
from service.tensors import HostTensor

if TYPE_CHECKING:
    from service.models.loaded import LoadedModel


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The rows of one request in a batch, with the request's own size per axis."""

    inputs: Mapping[str, HostTensor]
    shape: Shape


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Parts that run together: rows are stacked along the batch axis, other axes are as large as the largest part's."""

    parts: Sequence[Part]
    shape: Shape  # of the whole: batch = sum of the parts' rows, other axes = their maximum

    @classmethod
    def of(cls, parts: Sequence[Part], batch_axis: str) -> Batch:
        """Stack parts."""
        if len(parts) == 1:
            return cls(parts, parts[0].shape)
        shape = {axis: max(part.shape[axis] for part in parts) for axis in parts[0].shape}
        if batch_axis in shape:
            shape[batch_axis] = sum(part.shape[batch_axis] for part in parts)
        return cls(parts, shape)


class Padding(StrEnum):
    """What padding rows hold: the input's pad value, or a repeat of the last real row."""

    VALUE = "value"
    REPEAT = "repeat"


@dataclass(slots=True)
class CaptureTimings:
    """Seconds of each step of a capture."""

    warm_up: float = 0.0
    capture: float = 0.0
    instantiate: float = 0.0
    first_launch: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return self.warm_up + self.capture + self.instantiate + self.first_launch


@dataclass(slots=True)
class DeviceMemory:
    """Bytes of the device, as the driver reports them; of the host on a CPU. `detail`: what the allocator holds and has given out."""

    free: int = 0
    total: int = 0
    detail: dict[str, int] = field(default_factory=dict)

    @property
    def available(self) -> int:
        """Free, and what the allocator holds without having given it out."""
        return self.free + self.detail.get("reserved", 0) - self.detail.get("allocated", 0)


Outputs = dict[str, HostTensor]


def refuse_many_nodes(nodes: int, limit: int | None) -> None:
    """Making a graph ready keeps the driver from others' launches in proportion to its nodes. Raises CaptureRefused."""
    if limit is not None and nodes > limit:
        problem = f"the step has {nodes} operations, and cache.capture.max_nodes is {limit}"
        raise CaptureRefused(RefusalReason.CAPTURE_ERROR, problem)


class Recording(Protocol):
    """A step recorded at one bucket. `replay` runs on the lane's thread only; `close` in the capturer's only."""

    bucket: Bucket
    bytes: int  # its own: static buffers, the driver's bytes per node, a private pool
    arena: str  # the shared pool it lives in; "" where it has its own
    arena_bytes: int  # size of that pool right after the capture
    driver_bytes: int  # of `bytes`, what the driver holds outside the allocator; after `close` it keeps most of it for later graphs
    nodes: int
    timings: CaptureTimings

    def replay(self, batch: Batch, padding: Padding = Padding.VALUE) -> list[Outputs]:
        """Run the batch padded to the bucket; one dict of outputs per part, cut back by axis names, in memory of its own.

        Raises DeviceLost; any other exception means that this recording is no longer to be used.
        """
        ...

    def addresses_unchanged(self) -> bool:
        """Whether the model's weights are still where this recording reads them. Updates in place are seen by a replay anyway."""
        ...

    def close(self) -> None:
        """Give the memory back. Nothing may be replaying it."""
        ...


class Backend(Protocol):
    """One device. Eager runs and replays come from the lane's thread, recording and closing from the capturer's thread."""

    device: str  # "cpu" or "cuda:N"

    def environment(self) -> Environment:
        """What the kernels on this device depend on."""
        ...

    def memory(self) -> DeviceMemory:
        """Free and total bytes now."""
        ...

    def arena_bytes(self, arena: str) -> int:
        """What an arena's pools take now; 0 where it has none. Called from the capturer's thread."""
        ...

    def lane(self) -> AbstractContextManager[None]:
        """Entered once by the lane's thread: gradient mode off, the lane's stream current."""
        ...

    def capturer(self) -> AbstractContextManager[None]:
        """Entered once by the capturer's thread."""
        ...

    def run_eager(self, model: LoadedModel, variant: Variant, batch: Batch) -> list[Outputs]:
        """Run the step as it is. All parts must be equal in their other axes. Raises ModelRaised, OutOfDeviceMemory, DeviceLost."""
        ...

    def record(self, model: LoadedModel, variant: Variant, bucket: Bucket, *, own_pool: bool = False) -> Recording:
        """Warm up and capture the step at a bucket, with values that are safe for it. Raises CaptureRefused, DeviceLost."""
        ...

    def close(self) -> None:
        """Let go of the device."""
        ...
