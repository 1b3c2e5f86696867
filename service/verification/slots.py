"""Declared state, addressed by slots: judged on every slot of a throw-away instance, proven in scratch slots of the one that serves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from cachepolicy.reasons import RefusalReason
from service.errors import CaptureRefused
from service.models.loaded import DATATYPES, LoadedModel
from service.models.spec import ModelSpec, StateSpec
from service.tensors import HostTensor
from service.verification.comparing import BOUNDS
from service.verification.fingerprints import digest, slot_digests
from service.verification.samples import Inputs


class TrialSlots:
    """All slots of a throw-away instance, filled with values; the trial's rows name the first ones."""

    def __init__(self, model: LoadedModel, rows: int) -> None:
        self._state = model.state
        self._rows = rows
        self._generator = torch.Generator(model.device).manual_seed(7)
        for buffer in self._state.values():
            self._fill(buffer)
        self._named = {name: buffer[:rows].clone() for name, buffer in self._state.items()}
        self._foreign = self._digests()

    def __bool__(self) -> bool:
        return bool(self._state)

    def reset(self) -> None:
        """Give the named slots their first content back."""
        for name, buffer in self._state.items():
            buffer[: self._rows].copy_(self._named[name])

    def disturb(self) -> None:
        """Other content in all slots that are not named."""
        for buffer in self._state.values():
            self._fill(buffer[self._rows :])

    def refuse_writes(self) -> None:
        """Raises CaptureRefused where a slot changed that was not named."""
        for name, digests in self._digests().items():
            changed = (digests != self._foreign[name]).nonzero()
            if len(changed):
                slot = int(changed[0]) + self._rows
                raise CaptureRefused(RefusalReason.STATEFUL, f"{name}: slot {slot} changed, which no row of the request names")

    def _digests(self) -> dict[str, torch.Tensor]:
        return {name: slot_digests(buffer[self._rows :]) for name, buffer in self._state.items()}

    def _fill(self, slots: torch.Tensor) -> None:
        if not slots.is_floating_point():
            return  # integers may be indices
        for slot in slots:
            slot.copy_(torch.randn(slot.shape, generator=self._generator, device=slot.device))


class ScratchSlots:
    """The scratch slots of a model that serves: to save, to put back, to compare after a step. On the lane's thread only."""

    def __init__(self, model: LoadedModel) -> None:
        self._regions = {state.buffer: model.state[state.buffer][state.slots :] for state in model.spec.state}
        self._live = {state.buffer: model.state[state.buffer][: state.slots] for state in model.spec.state}

    def save(self) -> dict[str, torch.Tensor]:
        """Their content now."""
        return {name: region.clone() for name, region in self._regions.items()}

    def restore(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Put content back."""
        for name, region in self._regions.items():
            region.copy_(saved[name])

    def live_digests(self) -> dict[str, int]:
        """What requests' slots hold, in short."""
        return {name: digest(region) for name, region in self._live.items()}


def problem(expected: Mapping[str, torch.Tensor], got: Mapping[str, torch.Tensor], used: list[int]) -> str:
    """Why scratch slots (by their number within scratch) hold something else after a replay than after an eager run."""
    for name, tensor in expected.items():
        a, b = tensor[used], got[name][used]
        if torch.equal(a, b):
            continue
        bounds = BOUNDS.get(DATATYPES[tensor.dtype])
        if bounds is None or _relative_distance(a, b) > bounds.cap:
            return f"state {name} differs from eager's"
    return ""


class Layout:
    """How the rows of a trial lie on scratch slots beside the padding rows, which take the first ones.

    Rows that share a slot have to be equal, or the order of their writes would decide the answer.
    """

    def __init__(self, spec: ModelSpec, bucket_rows: int) -> None:
        self._spec = spec
        self._bucket_rows = bucket_rows
        self._scratch = min(state.scratch for state in spec.state)

    def free(self, rows: int) -> int:
        """Scratch slots that `rows` real rows have for themselves."""
        return self._scratch - min(self._bucket_rows - rows, self._scratch)

    def order(self, rows: int) -> list[int]:
        """Which row of a sample each of the rows is."""
        return [row % self.free(rows) for row in range(rows)]

    def used(self, rows: int) -> list[int]:
        """Scratch slots that the real rows name, numbered within scratch."""
        return [self._scratch - 1 - slot for slot in range(min(self.free(rows), rows))]

    def place(self, inputs: Inputs, rows: int) -> Inputs:
        """Write the slots into the index inputs."""
        placed = dict(inputs)
        for state in self._spec.state:
            placed[state.index_input] = self._index(state, inputs[state.index_input], rows)
        return placed

    def _index(self, state: StateSpec, like: HostTensor, rows: int) -> HostTensor:
        slots = [state.slots + self._scratch - 1 - at for at in self.order(rows)]
        return HostTensor.of(like.datatype, np.asarray(slots).astype(like.datatype.bits))


def _relative_distance(expected: torch.Tensor, got: torch.Tensor) -> float:
    """As `comparing.relative_distance`, but where the tensors are, since a cache has many bytes, and slot by slot, to need few more.

    The scale is the largest finite magnitude in any of the slots.
    """
    scale = max(float(_finite_magnitudes(slot.double()).max()) for slot in expected)
    return max(_slot_distance(slot.double(), other.double(), scale) for slot, other in zip(expected, got, strict=True))


def _finite_magnitudes(a: torch.Tensor) -> torch.Tensor:
    return torch.where(a.isfinite(), a.abs(), 0.0)


def _slot_distance(a: torch.Tensor, b: torch.Tensor, scale: float) -> float:
    same = (a == b) | (a.isnan() & b.isnan())
    if bool((~same & ~(a.isfinite() & b.isfinite())).any()):
        return float("inf")
    return float(torch.where(same, 0.0, (b - a).abs() / (a.abs() + scale)).max())
