"""The decode step against attention over whole sequences, written independently of it."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from service.models import demo

LAYERS, HEADS, KV_HEADS = 3, 4, 2

small = partial(
    demo.decode, layers=LAYERS, width=64, heads=HEADS, kv_heads=KV_HEADS, hidden=96, vocabulary=50, context=32, slots=6, scratch=2
)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + torch.finfo(x.dtype).eps) * weight


def turned(x: Tensor, position: int) -> Tensor:
    """Rotate each pair of one head's vector, as a complex number, by its angle."""
    half = len(x) // 2
    numbers = torch.complex(x[:half], x[half:])
    angles = torch.tensor([position * 10000.0 ** (-i / half) for i in range(half)])
    result = numbers * torch.polar(torch.ones(half), angles)
    return torch.cat((result.real, result.imag))


@torch.no_grad()
def whole_sequence(step: torch.nn.Module, tokens: list[int]) -> Tensor:
    """Logits of every position [length, vocabulary]: token by token, head by head, without any cache."""
    state = step.state_dict()
    hidden = state["table"][tokens]
    for layer in range(LAYERS):
        w = {name.split(".")[2]: tensor for name, tensor in state.items() if name.startswith(f"layers.{layer}.")}
        h = normed(hidden, w["attention_norm"])
        queries, keys, values = (
            (h @ w[kind].T).view(len(tokens), count, -1) for kind, count in (("query", HEADS), ("key", KV_HEADS), ("value", KV_HEADS))
        )
        keys = torch.stack([torch.stack([turned(head, at) for head in row]) for at, row in enumerate(keys)])
        attended = torch.zeros_like(queries)
        for at in range(len(tokens)):
            for head in range(HEADS):
                shared = head // (HEADS // KV_HEADS)
                query = turned(queries[at, head], at)
                scores = [query @ keys[past, shared] / math.sqrt(len(query)) for past in range(at + 1)]
                attended[at, head] = torch.softmax(torch.stack(scores), dim=0) @ values[: at + 1, shared]
        hidden = hidden + attended.flatten(1) @ w["out"].T
        h = normed(hidden, w["feed_norm"])
        gate = h @ w["gate"].T
        hidden = hidden + (gate * torch.sigmoid(gate) * (h @ w["up"].T)) @ w["down"].T
    logits: Tensor = normed(hidden, state["norm"]) @ state["table"].T
    return logits


def test_step_by_step_equals_attention_over_the_whole_sequence() -> None:
    """Four sequences of different length and start, mixed in random batches and orders of rows, give the logits of the plain model."""
    step = small()
    g = torch.Generator().manual_seed(1)
    sequences = [torch.randint(0, 50, (length,), generator=g).tolist() for length in (9, 6, 8, 2)]
    slots = [5, 0, 3, 2]
    expected = [whole_sequence(step, tokens) for tokens in sequences]
    done = [0] * len(sequences)
    while any(at < len(tokens) for at, tokens in zip(done, sequences, strict=True)):
        open_rows = [n for n, tokens in enumerate(sequences) if done[n] < len(tokens)]
        chosen = [open_rows[i] for i in torch.randperm(len(open_rows), generator=g).tolist()][
            : 1 + int(torch.randint(4, (1,), generator=g))
        ]
        with torch.no_grad():
            outputs = step(
                tokens=torch.tensor([sequences[n][done[n]] for n in chosen]),
                slots=torch.tensor([slots[n] for n in chosen]),
                positions=torch.tensor([done[n] for n in chosen]),
            )
        for row, n in enumerate(chosen):
            torch.testing.assert_close(outputs["logits"][row], expected[n][done[n]], rtol=1e-4, atol=1e-4)
            assert outputs["next_token"][row] == outputs["logits"][row].argmax()
            done[n] += 1


def test_a_step_writes_the_named_cells_and_no_other() -> None:
    """Foreign slots, and other positions of the same slot, stay as they are to the bit."""
    step = small()
    cell = torch.randn(step.keys.shape, generator=torch.Generator().manual_seed(2))
    step.keys.copy_(cell)
    step.values.copy_(cell)
    with torch.no_grad():
        step(tokens=torch.tensor([1, 2]), slots=torch.tensor([4, 1]), positions=torch.tensor([3, 30]))
    for cache in (step.keys, step.values):
        changed = torch.ne(cache, cell).any(dim=-1).any(dim=2).any(dim=1)
        assert changed.nonzero().tolist() == [[1, 30], [4, 3]]


def test_what_a_slot_held_before_does_not_matter() -> None:
    """A sequence that starts at position 0 reads nothing of what the slot's earlier owner left behind, to the bit."""
    step = small()
    question = {"tokens": torch.tensor([7]), "slots": torch.tensor([2]), "positions": torch.tensor([0])}
    with torch.no_grad():
        fresh = step(**question)["logits"].clone()
        step.keys.uniform_(-100, 100)
        step.values.uniform_(-100, 100)
        assert torch.equal(step(**question)["logits"], fresh)


def test_without_logits_only_the_token_comes_back() -> None:
    """A large vocabulary's logits need not be copied out with each step."""
    step = small(logits=False)
    assert list(step(tokens=torch.tensor([1]), slots=torch.tensor([0]), positions=torch.tensor([0]))) == ["next_token"]


def test_other_dtypes_stay_what_they_are() -> None:
    """In bfloat16 the cache and the weights are bfloat16; logits are always FP32."""
    step = small(dtype="bfloat16")
    assert {tensor.dtype for tensor in (*step.parameters(), step.keys, step.values)} == {torch.bfloat16}
    outputs = step(tokens=torch.tensor([1]), slots=torch.tensor([0]), positions=torch.tensor([0]))
    assert outputs["logits"].dtype is torch.float32
    assert outputs["logits"].isfinite().all()
