"""What the driver tells of the device in use."""

from __future__ import annotations

import pytest
import torch

from tests.harness import ask, running

pytestmark = pytest.mark.gpu


async def test_memory_utilisation_and_clocks_of_the_device_in_use() -> None:
    """Memory grows with what is allocated; the clock of the multiprocessors is a frequency."""
    async with running("cuda:0") as node:
        await ask(node, "mlp", {"x": torch.ones(4, 256)})
        reading = node.observer.snapshot().memory
        assert reading is not None
        assert 0 < reading.memory_used < reading.memory_total
        assert reading.memory_total == pytest.approx(torch.cuda.get_device_properties(0).total_memory, rel=0.1)
        assert reading.clocks["sm"] > 1e8
        text = node.worker.metrics.registry.text()
        assert "graphcache_device_memory_used_bytes " in text
        assert 'graphcache_device_clock_hertz{domain="sm"}' in text
