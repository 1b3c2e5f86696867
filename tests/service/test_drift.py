"""A setting that kernels depend on is flipped while the worker runs: graphs recorded before don't serve until it is back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cachepolicy.reasons import FallbackReason
from service.errors import CaptureRefused
from service.messages import Path as ServedBy
from tests.harness import MODULES, ask, running, served

CONFIG = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
cache: {{capture: {{background: false}}}}
models:
  - name: m
    factory: file:{MODULES}/drudge.py
    rows: dependent
    axes: {{batch: {{max: 8, buckets: [4, 8]}}}}
"""
torch.set_float32_matmul_precision("highest")  # as it is by default, and said aloud
FLIPS: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
    "precision of matmul is bf16, was ieee": (
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.set_float32_matmul_precision("highest"),
    ),
    "deterministic algorithms is True, was False": (
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
    ),
    "flash attention is False, was True": (lambda: torch._C._set_sdp_use_flash(False), lambda: torch._C._set_sdp_use_flash(True)),
    "precision of conv is tf32, was none": (
        lambda: setattr(torch.backends.mkldnn.conv, "fp32_precision", "tf32"),  # type: ignore[attr-defined]
        lambda: setattr(torch.backends.mkldnn.conv, "fp32_precision", "none"),  # type: ignore[attr-defined]
    ),
    "mkldnn is False, was True": (
        lambda: torch._C._set_mkldnn_enabled(False),
        lambda: torch._C._set_mkldnn_enabled(True),
    ),
}


@pytest.mark.parametrize("detail", FLIPS)
async def test_a_flip_makes_graphs_stale_at_the_next_request(detail: str) -> None:
    """Requests run eagerly and say why, nothing is captured meanwhile, and the same graph serves once the setting is back."""
    flip, back = FLIPS[detail]
    values = {"x": torch.ones(3, 4)}
    async with running("cpu", CONFIG) as node:
        await node.admin.warm("m", "", {"batch": 4}, {}, force=False)
        assert (await ask(node, "m", values)).outcome.path is ServedBy.REPLAY
        flip()
        try:
            outcome = (await ask(node, "m", values)).outcome
            assert (outcome.path, outcome.reason, outcome.detail) == (ServedBy.EAGER, FallbackReason.STALE, detail)
            assert node.admin.explain("m", "", {"batch": 3}, {}).reason is FallbackReason.STALE
            with pytest.raises(CaptureRefused, match=detail):
                await node.admin.warm("m", "", {"batch": 8}, {}, force=True)
        finally:
            back()
        assert (await ask(node, "m", values)).outcome.path is ServedBy.REPLAY
        await node.admin.warm("m", "", {"batch": 8}, {}, force=False)


async def test_settings_that_a_model_changes_as_it_loads_are_its_own(tmp_path: Path) -> None:
    """Its graphs serve under them, and are named by the environment that they make."""
    (tmp_path / "medium.py").write_text(
        "import torch\ntorch.set_float32_matmul_precision('medium')\n" + (MODULES / "drudge.py").read_text().replace('"""', "#", 2)
    )
    text = CONFIG.replace(f"file:{MODULES}/drudge.py", f"file:{tmp_path}/medium.py").replace(str(MODULES), str(tmp_path))
    try:
        async with running("cpu", text) as node:
            await node.admin.warm("m", "", {"batch": 4}, {}, force=False)
            assert (await ask(node, "m", {"x": torch.ones(3, 4)})).outcome.path is ServedBy.REPLAY
            assert served(node, "m").surroundings.environment == node.backend.environment().fingerprint()
    finally:
        torch.set_float32_matmul_precision("highest")
