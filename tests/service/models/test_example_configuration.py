from __future__ import annotations

from pathlib import Path

import torch

from service.choices import Above
from service.config import load
from service.models.loading import load_model
from service.models.spec import AxisSpec

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_example_is_served_as_its_readme_says() -> None:
    """The configuration holds together, its model loads, and padding on both axes leaves real scores alone."""
    config = load(EXAMPLES / "worker.yaml")
    model = load_model(
        config.models[0], device=torch.device("cpu"), allowed=config.worker.allowed_factories, generation=1, base_dir=config.base_dir
    )
    assert model.spec.axes == (
        AxisSpec("batch", 32, (1, 2, 4, 8, 16, 32), Above.SPLIT),
        AxisSpec("items", 100, (8, 16, 32, 64, 100), Above.REJECT),
    )
    assert model.spec.ladder.fit(config.cache.prewarm.list[0].shape) is not None
    assert model.examples is not None
    inputs = dict(model.examples(3, 1))
    assert list(inputs) == ["query", "candidates"]
    padded = {
        "query": torch.nn.functional.pad(inputs["query"], (0, 0, 0, 1)),
        "candidates": torch.nn.functional.pad(inputs["candidates"], (0, 0, 0, 4, 0, 1), value=9.0),
        "real": torch.nn.functional.pad(torch.ones(3, 12, dtype=torch.bool), (0, 4, 0, 1)),
    }
    with torch.no_grad():
        exact = model.forward({**inputs, "real": torch.ones(3, 12, dtype=torch.bool)}, ())["scores"]
        scores = model.forward(padded, ())["scores"]
    torch.testing.assert_close(scores[:3, :12], exact)
    assert scores.isfinite().all()
