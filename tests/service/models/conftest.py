from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from service.config import ModelConfig
from service.models.loaded import LoadedModel
from service.models.loading import load_model

FILES = Path(__file__).parent / "files"

Load = Callable[..., LoadedModel]


@pytest.fixture
def load() -> Load:
    """Load a model on the CPU as the worker would; `index` 1 stands for its place in the configuration."""

    def load_it(
        base_dir: Path = FILES,
        *,
        allowed: tuple[str, ...] = ("file:*.py", "service.models.demo:*"),
        generation: int = 3,
        **keys: object,
    ) -> LoadedModel:
        config = ModelConfig.model_validate({"name": "m", **keys})
        return load_model(config, device=torch.device("cpu"), allowed=allowed, generation=generation, base_dir=base_dir, index=1)

    return load_it
