from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own habit)

from service.choices import Rows
from service.config import load
from service.models import demo
from service.models.decode import DecodeStep, Sizes
from service.models.loaded import LoadedModel
from service.models.loading import load_model
from service.models.values import made_up

NAMES = ["mlp", "chain32", "encoder", "decode", "adapters"]


@cache
def demo_models() -> dict[str, LoadedModel]:
    """All models of the bundled configuration, on the CPU."""
    config = load(None, demo=True)
    return {
        model.name: load_model(
            model, device=torch.device("cpu"), allowed=config.worker.allowed_factories, generation=1, base_dir=config.base_dir, index=index
        )
        for index, model in enumerate(config.models)
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_demo_model_is_the_same_in_every_process(name: str) -> None:
    """Weights come from a generator of the model's own; torch's global one is not touched."""
    state = torch.get_rng_state()
    first, second = getattr(demo, name)(), getattr(demo, name)()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not any(part.training for part in first.modules())


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_are_declared_independent_are(name: str) -> None:
    """Each row of a batch equals the same row alone."""
    model = demo_models()[name]
    assert model.spec.rows is Rows.INDEPENDENT
    sizes = {axis.name: 5 for axis in model.spec.axes}
    inputs = made_up(model.spec.inputs, model.spec.state, sizes, seed=1)
    for variant in model.spec.all_variants():
        with torch.no_grad():
            together = model.forward(inputs, variant)
            alone = [model.forward({k: v[row : row + 1] for k, v in inputs.items()}, variant) for row in range(5)]
        for output in together:
            torch.testing.assert_close(together[output], torch.cat([row[output] for row in alone]))


def test_the_chain_adds_its_terms() -> None:
    """The sum of all rows of its table, onto x."""
    chain = demo.chain32(width=8)
    x = torch.randn(3, 8)
    torch.testing.assert_close(chain(x)["y"], x + next(chain.parameters()).sum(dim=0))


def test_the_encoder_does_not_see_padding() -> None:
    """Padded tokens behind the mask leave the embedding as it is without them, and a row that is all padding is zero."""
    model = demo_models()["encoder"].module
    tokens = torch.randint(0, 30000, (2, 7), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        exact = model(tokens=tokens, mask=torch.ones(2, 7, dtype=torch.bool))["embedding"]
        padded = F.pad(tokens, (0, 9, 0, 1), value=29999)
        mask = F.pad(torch.ones(2, 7, dtype=torch.bool), (0, 9, 0, 1))
        result = model(tokens=padded, mask=mask)["embedding"]
    torch.testing.assert_close(result[:2], exact)
    assert result[2].tolist() == [0.0] * 256


def test_the_encoder_attends() -> None:
    """The answer depends on the order of the tokens, so that neither attention nor places are idle."""
    model = demo_models()["encoder"].module
    tokens = torch.tensor([[5, 6, 7], [7, 6, 5]])
    with torch.no_grad():
        first, second = model(tokens=tokens, mask=torch.ones(2, 3, dtype=torch.bool))["embedding"]
    assert (first - second).abs().max() > 1e-3


def test_each_adapter_has_an_answer_of_its_own() -> None:
    """The base has no correction; the others correct the hidden layer by their own low rank."""
    model = demo_models()["adapters"]
    x = torch.randn(4, 128, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        answers = {value: model.forward({"x": x}, (("adapter", value),))["y"] for value in ("base", "legal", "medical")}
        state = model.module.state_dict()
        up = F.linear(x, state["up.weight"], state["up.bias"])
        low = x @ state["corrections.legal.0.weight"].T @ state["corrections.legal.1.weight"].T
        legal = F.linear(F.gelu(up + low), state["down.weight"], state["down.bias"])
        base = F.linear(F.gelu(up), state["down.weight"], state["down.bias"])
    torch.testing.assert_close(answers["legal"], legal)
    torch.testing.assert_close(answers["base"], base)
    assert (answers["legal"] - answers["medical"]).abs().max() > 1e-2


def test_demo_models_have_no_state_but_what_they_declare() -> None:
    """Weights files hold no cache, and the state is where the spec says."""
    decode = demo_models()["decode"]
    assert list(decode.state) == ["keys", "values"]
    assert not set(decode.module.state_dict()) & set(decode.state)
    for name in ("mlp", "chain32", "encoder", "adapters"):
        assert not list(demo_models()[name].module.buffers())


def test_a_model_of_a_billion_parameters_is_a_matter_of_arguments() -> None:
    """The same step at the shape of a 1B model, built without memory to see that it adds up."""
    with torch.device("meta"):
        sizes = Sizes(layers=16, width=2048, heads=32, kv_heads=8, hidden=8192, vocabulary=128256, context=256, slots=65)
        step = DecodeStep(sizes, torch.Generator(), torch.bfloat16, logits=False)
    assert isinstance(step, nn.Module)
    assert 1.2e9 < sum(parameter.numel() for parameter in step.parameters()) < 1.3e9
