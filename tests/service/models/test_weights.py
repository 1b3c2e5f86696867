from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from service.errors import ConfigError
from service.models.place import Place
from service.models.weights import load_weights

PLACE = Place("models[0] (m).weights")


def two_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


def tensors() -> dict[str, torch.Tensor]:
    return {name: torch.full_like(tensor, 0.5) for name, tensor in two_layers().state_dict().items()}


def test_weights_land_in_the_module_s_own_storage(tmp_path: Path) -> None:
    """Values change, addresses do not."""
    module = two_layers()
    addresses = [parameter.data_ptr() for parameter in module.parameters()]
    save_file(tensors(), tmp_path / "w.safetensors")
    load_weights(module, tmp_path / "w.safetensors", PLACE)
    assert all(torch.eq(parameter, 0.5).all() for parameter in module.parameters())
    assert [parameter.data_ptr() for parameter in module.parameters()] == addresses


def test_tied_weights_may_be_in_the_file_once(tmp_path: Path) -> None:
    """A file can't hold two names of one tensor; the module can."""
    table, head = nn.Embedding(4, 2), nn.Linear(2, 4, bias=False)
    head.weight = table.weight
    module = nn.ModuleDict({"table": table, "head": head})
    save_file({"table.weight": torch.ones(4, 2)}, tmp_path / "w.safetensors")
    load_weights(module, tmp_path / "w.safetensors", PLACE)
    assert torch.equal(head.weight, torch.ones(4, 2))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"0.bias": None}, "w.safetensors misses 0.bias"),
        ({"2.bias": torch.ones(1)}, "w.safetensors has unknown 2.bias"),
        ({"0.bias": torch.ones(4)}, "w.safetensors has another shape or dtype of 0.bias"),
        ({"0.bias": torch.ones(3, dtype=torch.float16)}, "w.safetensors has another shape or dtype of 0.bias"),
        ({"0.bias": None, "0.offset": torch.ones(3)}, "w.safetensors misses 0.bias; w.safetensors has unknown 0.offset"),
        ({f"extra{n}": torch.ones(1) for n in range(7)}, "w.safetensors has unknown extra0, extra1, extra2, extra3, extra4 and 2 more"),
    ],
)
def test_weights_that_do_not_fit_are_named_and_change_nothing(tmp_path: Path, change: dict[str, torch.Tensor | None], problem: str) -> None:
    """Missing, left over, or of another kind."""
    module = two_layers()
    before = [parameter.clone() for parameter in module.parameters()]
    save_file({name: tensor for name, tensor in (tensors() | change).items() if tensor is not None}, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError) as caught:
        load_weights(module, tmp_path / "w.safetensors", PLACE)
    assert str(caught.value) == f"models[0] (m).weights: {problem}"
    assert all(torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))


def test_a_file_of_other_content_is_named(tmp_path: Path) -> None:
    """The reader's own error is told."""
    (tmp_path / "w.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00nonsense")
    with pytest.raises(ConfigError, match=r"^models\[0\] \(m\)\.weights: reading w\.safetensors raised SafetensorError"):
        load_weights(two_layers(), tmp_path / "w.safetensors", PLACE)
