"""Whether a model's weights are still where a recording reads them."""

from __future__ import annotations

import torch
from torch import nn


class Addresses:
    """Addresses of all parameters and buffers at one moment, with strong references: an address that is held is not used again."""

    def __init__(self, module: nn.Module) -> None:
        self._entries: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor, int]] = []
        for part in module.modules():
            for table in (part._parameters, part._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        self._entries.append((table, name, tensor, address(tensor)))  # type: ignore[arg-type]

    def unchanged(self) -> bool:
        """Whether every tensor is the same and in the same place; about 0.2 µs for each."""
        return all(table.get(name) is tensor and address(tensor) == known for table, name, tensor, known in self._entries)


def address(tensor: torch.Tensor) -> int:
    """Where its values are; for a sparse tensor, which has no one place, which object it is."""
    return tensor.data_ptr() if tensor.layout is torch.strided else id(tensor)
