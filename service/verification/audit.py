"""Graphs that serve are audited: a small share of replays is run again eagerly, and compared; when the worker is idle, or soon anyway.

Which replays: every n-th of each graph, the first one included, so that of a graph that goes wrong from some moment on at most n replays
are served before one that is audited. Models with declared state are left out: by then their state has moved on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from cachepolicy.cache import GraphEntry
from service.backends.base import Backend, Batch, Outputs, Part
from service.errors import DeviceLost, GraphcacheError, ModelRaised
from service.lane import Lane
from service.models.loaded import LoadedModel
from service.models.spec import Variant
from service.tensors import HostTensor
from service.verification.comparing import Comparer

_OVERDUE_S = 1.0


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A served reply that eager does not give."""

    entry: GraphEntry
    model: LoadedModel
    detail: str


@dataclass(frozen=True, slots=True)
class _Kept:
    entry: GraphEntry
    model: LoadedModel
    variant: Variant
    part: Part
    outputs: Outputs
    since: float

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for table in (self.part.inputs, self.outputs) for tensor in table.values())


class Audit:
    """Keeps replays on the lane's thread, runs them again from any other. `on_mismatch` takes the graph out of service.

    `standard` is what the proof compared with (`Proof.standard`).
    """

    def __init__(
        self,
        backend: Backend,
        lane: Lane,
        standard: Callable[[LoadedModel, Variant], Comparer | None],
        on_mismatch: Callable[[Mismatch], None],
        *,
        every: int,
        max_bytes: int = 64 << 20,
        max_kept: int = 64,
    ) -> None:
        self._backend = backend
        self._lane = lane
        self._standard = standard
        self._on_mismatch = on_mismatch
        self._every = every
        self._max_bytes = max_bytes
        self._kept: deque[_Kept] = deque()
        self._max_kept = max_kept
        self._bytes = 0
        self._lock = threading.Lock()
        self.audited = 0
        self.left_out = 0  # chosen, but there was no room

    @property
    def waiting(self) -> int:
        """Replays that are kept and not yet run again."""
        return len(self._kept)

    @property
    def overdue(self) -> bool:
        """Whether a replay waits so long already that requests have to make way for it."""
        with self._lock:
            return bool(self._kept) and monotonic() - self._kept[0].since >= _OVERDUE_S

    def offer(self, entry: GraphEntry, model: LoadedModel, variant: Variant, parts: Sequence[Part], outputs: Sequence[Outputs]) -> None:
        """A replay was served, and counted as a hit: keep one of its parts, if it is this graph's turn.

        For the lane's thread; copies only what it keeps.
        """
        if model.spec.state or self._every <= 0 or (entry.hits - 1) % self._every:
            return
        at = self.audited % len(parts)
        kept = _Kept(entry, model, variant, Part(_copies(parts[at].inputs), dict(parts[at].shape)), _copies(outputs[at]), monotonic())
        with self._lock:
            if len(self._kept) >= self._max_kept or self._bytes + kept.nbytes > self._max_bytes:
                self.left_out += 1
                return
            self._kept.append(kept)
            self._bytes += kept.nbytes

    def step(self) -> bool:
        """Audit one kept replay; False where there is none. To be called from neither lane nor event loop.

        A model that was reloaded meanwhile is compared with the weights that gave the answer.
        """
        with self._lock:
            if not self._kept:
                return False
            kept = self._kept.popleft()
            self._bytes -= kept.nbytes
        detail = self._problem(kept)
        self.audited += 1
        if detail:
            self._on_mismatch(Mismatch(kept.entry, kept.model, detail))
        return True

    def _problem(self, kept: _Kept) -> str:
        batch = Batch([kept.part], kept.part.shape)
        try:
            expected = self._lane.submit(lambda: self._backend.run_eager(kept.model, kept.variant, batch)[0]).result()
        except ModelRaised as error:
            return f"eager raises {error}, the replay answered"
        except DeviceLost:
            raise
        except GraphcacheError:  # no memory just now
            return ""
        standard = self._standard(kept.model, kept.variant)
        return standard.problem(expected, kept.outputs, standard.typical_scales(expected)) if standard else ""


def _copies(tensors: Mapping[str, HostTensor]) -> dict[str, HostTensor]:
    return {name: HostTensor(tensor.datatype, tensor.shape, bytes(tensor.data)) for name, tensor in tensors.items()}
