"""Weights from safetensors files, strictly: what is missing, left over or of another shape or dtype is an error that names it."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from service.models.place import Place


def load_weights(module: nn.Module, path: Path, place: Place) -> None:
    """Copy a file's tensors into the module's own storage. Raises ConfigError and changes nothing where they don't match."""
    place.existing(path)
    with place.blamed(f"reading {path.name}"):
        found = load_file(path)
    wanted = module.state_dict()
    shared = {_storage(wanted[name]) for name in found if name in wanted}
    problems = [
        ("misses", [name for name, tensor in wanted.items() if name not in found and _storage(tensor) not in shared]),
        ("has unknown", [name for name in found if name not in wanted]),
        ("has another shape or dtype of", [n for n, t in found.items() if n in wanted and not _alike(t, wanted[n])]),
    ]
    if any(names for _, names in problems):
        raise place.error("; ".join(f"{path.name} {what} {_listed(names)}" for what, names in problems if names))
    with torch.no_grad():
        for name, tensor in found.items():
            wanted[name].copy_(tensor)


def _storage(tensor: Tensor) -> tuple[int, torch.Size]:
    """Equal for tied weights, which a file holds once."""
    return tensor.data_ptr(), tensor.shape


def _alike(found: Tensor, wanted: Tensor) -> bool:
    return found.shape == wanted.shape and found.dtype is wanted.dtype


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
