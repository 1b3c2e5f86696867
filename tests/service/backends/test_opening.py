"""Opening the device that the configuration names, and what its environment says."""

from __future__ import annotations

import pytest
import torch

from service.backends.environment import describe
from service.backends.opening import open_backend
from service.errors import ConfigError


@pytest.mark.parametrize("device", ["gpu", "cuda", "cuda:x", "cuda:-1", ""])
def test_unknown_name_is_a_configuration_error(device: str) -> None:
    """The message names the place and what is possible."""
    with pytest.raises(ConfigError, match=r"worker\.device: .* is none of auto, cpu, cuda:N"):
        open_backend(device)


def test_missing_device_is_a_configuration_error() -> None:
    """The message says how many there are."""
    with pytest.raises(ConfigError, match=r"worker\.device: cuda:99 isn't there; torch .* sees \d+ CUDA devices"):
        open_backend("cuda:99")


def test_automatic_choice_is_the_cpu_where_there_is_no_gpu() -> None:
    """`auto` always opens something."""
    assert open_backend("auto").device == ("cuda:0" if torch.cuda.is_available() else "cpu")


def test_environment_is_stable_and_follows_what_changes_numbers() -> None:
    """The same twice; another matmul precision, or another lowering, is another environment."""
    before = describe(torch.device("cpu"), lowering="torchscript").fingerprint()
    assert describe(torch.device("cpu"), lowering="torchscript").fingerprint() == before
    assert describe(torch.device("cpu"), lowering="inductor").fingerprint() != before
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert describe(torch.device("cpu"), lowering="torchscript").fingerprint() != before
    finally:
        torch.set_float32_matmul_precision(precision)
