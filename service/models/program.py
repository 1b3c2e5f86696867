"""Programs of torch.export (.pt2).

`torch.export.load` may unpickle what an archive holds: an archive is code, and belongs to those who may change the configuration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from service.models.building import FreeDim, KnownInput
from service.models.loaded import DATATYPES
from service.models.place import Place

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_UNBOUNDED = 2**31  # a range that ends beyond is none: torch writes "no limit" as a number, too


@dataclass(frozen=True, slots=True)
class Program:
    """An opened archive."""

    make: Callable[[torch.device], nn.Module]
    digest: str
    known: Mapping[str, KnownInput]


class ByName(nn.Module):
    """Calls an exported program, whose arguments are positional or not as they were at export, with keywords only."""

    def __init__(self, program: nn.Module, positional: list[str]) -> None:
        super().__init__()
        self.program = program
        self.positional = positional
        for module in self.modules():
            module.training = False  # a program is what was exported; it has no modes and refuses eval()

    def forward(self, **inputs: Tensor) -> object:
        """The program's own result."""
        positional = [inputs.pop(name) for name in self.positional]
        return self.program(*positional, **inputs)


def open_program(path: Path, batch_axis: str, place: Place) -> Program:
    """Read an archive and its signature. Dynamic dimensions become axes: the first of an input is the batch. Raises ConfigError."""
    place.existing(path)
    with place.blamed(f"reading {path.name}"):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
        exported = torch.export.load(path)
    known = _known(exported, batch_axis, place)
    positional, keywords = exported.call_spec.in_spec.children()
    names = list(known)[: positional.num_children]
    if not all(argument.is_leaf() for argument in (*positional.children(), *keywords.children())):
        raise place.error("takes nested arguments; only plain tensors can be served")

    def make(device: torch.device) -> nn.Module:
        from torch.export.passes import move_to_device_pass  # noqa: PLC0415 - imports torch._dynamo, as reading the archive does

        with place.blamed(f"moving {path.name} to {device}"):
            fresh = torch.export.load(path)  # modules of one program share its buffers, so each instance has a program of its own
            return ByName(move_to_device_pass(fresh, device).module(), names)

    return Program(make, digest, known)


def _known(exported: ExportedProgram, batch_axis: str, place: Place) -> dict[str, KnownInput]:
    wanted = set(exported.graph_signature.user_inputs)
    names: dict[str, str] = {}  # of symbols: one symbol in two inputs is one axis
    known: dict[str, KnownInput] = {}
    for node in exported.graph.nodes:
        if node.op != "placeholder" or node.name not in wanted:
            continue
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or value.dtype not in DATATYPES:
            raise place.error(f"input {node.name} is {value!r}, not a tensor that can be served")
        shape: list[int | FreeDim] = []
        sizes: Sequence[object] = value.shape
        for position, size in enumerate(sizes):
            if isinstance(size, int):
                shape.append(size)
                continue
            symbol = str(size)
            name = names.setdefault(symbol, batch_axis if position == 0 and batch_axis not in names.values() else f"{node.name}_{position}")
            shape.append(_free(name, exported, symbol))
        known[node.name] = KnownInput(DATATYPES[value.dtype], tuple(shape), exact=True)
    if len(known) != len(wanted):
        raise place.error("takes arguments that are not tensors")
    return known


def _free(name: str, exported: ExportedProgram, symbol: str) -> FreeDim:
    """The sizes that an export allowed a symbol to have; expressions of symbols have no range of their own."""
    for key, bounds in exported.range_constraints.items():
        if str(key) == symbol:
            low, high = int(bounds.lower), bounds.upper
            return FreeDim(name, max(low, 1), int(high) if high.is_finite and high < _UNBOUNDED else None)
    return FreeDim(name)
