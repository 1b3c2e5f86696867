"""What is kept out of the collector's sight is freed all the same once it is to go."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from weakref import ref

import pytest
import torch

from service import garbage
from service.messages import Path
from tests.harness import MODULES, ask, running, served

TEXT = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
cache: {{audit: 0%, capture: {{background: false}}}}
models:
  - {{name: m, factory: "file:{MODULES}/cyclic.py", rows: independent, axes: {{batch: {{max: 4, buckets: [4]}}}}}}
"""


@pytest.fixture(autouse=True)
def _seen_again() -> Iterator[None]:
    """Other tests' garbage is not kept."""
    yield
    gc.unfreeze()


@pytest.mark.parametrize("change", ["unload", "reload"])
async def test_a_model_that_hangs_in_a_cycle_is_freed_when_it_goes(change: str) -> None:
    """It was there when the worker became ready, and has served a graph."""
    async with running("cpu", TEXT) as node:
        await node.admin.warm("m", "", {"batch": 4}, {}, force=True)
        assert (await ask(node, "m", {"x": torch.ones(3, 4)})).outcome.path is Path.REPLAY
        module = ref(served(node, "m").loaded.module)
        garbage.keep()
        assert gc.get_freeze_count() > 10_000
        if change == "unload":
            await node.admin.unload("m")
        else:
            await node.admin.reload("m")
        assert module() is None
        assert gc.get_freeze_count() > 10_000
