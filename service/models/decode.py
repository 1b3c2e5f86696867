"""A Llama-shaped decode step whose KV cache is declared state: RMSNorm, rotary places, grouped-query attention, SwiGLU.

The step reads nothing on the host and every shape follows from the batch alone, so it can be recorded. It may only touch the cache at the
slots it is given: the worker aims padding rows and trial runs at scratch slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own habit)

_DRAWN = (1 << 20) - 3  # a prime: no two rows begin at the same of these values


@dataclass(frozen=True, slots=True)
class Sizes:
    """Shape of the model; `slots` counts the scratch slots, too."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    context: int
    slots: int

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.width // self.heads


class DecodeLayer(nn.Module):
    """Attention over the cache and feed-forward of one layer."""

    def __init__(self, sizes: Sizes, g: torch.Generator, dtype: torch.dtype) -> None:
        super().__init__()
        self.sizes = sizes
        kv_width = sizes.kv_heads * sizes.head_width
        self.attention_norm = nn.Parameter(torch.ones(sizes.width, dtype=dtype))
        self.query = _matrix(g, sizes.width, sizes.width, dtype)
        self.key = _matrix(g, kv_width, sizes.width, dtype)
        self.value = _matrix(g, kv_width, sizes.width, dtype)
        self.out = _matrix(g, sizes.width, sizes.width, dtype)
        self.feed_norm = nn.Parameter(torch.ones(sizes.width, dtype=dtype))
        self.gate = _matrix(g, sizes.hidden, sizes.width, dtype)
        self.up = _matrix(g, sizes.hidden, sizes.width, dtype)
        self.down = _matrix(g, sizes.width, sizes.hidden, dtype)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, at: Step) -> Tensor:
        """`x` [batch, width]; `keys` and `values` [slots, kv_heads, context, head_width] are written at the step's slots and positions."""
        s = self.sizes
        h = F.rms_norm(x, (s.width,), self.attention_norm)
        query = at.rotate(F.linear(h, self.query).view(-1, s.heads, s.head_width))
        key = at.rotate(F.linear(h, self.key).view(-1, s.kv_heads, s.head_width))
        value = F.linear(h, self.value).view(-1, s.kv_heads, s.head_width)
        keys.transpose(1, 2).index_put_(at.cell, key)  # by slot and position: a cell of all heads
        values.transpose(1, 2).index_put_(at.cell, value)
        # The query heads that share a key head take the place of a sequence: [batch, kv_heads, group, head_width].
        grouped = query.view(-1, s.kv_heads, s.heads // s.kv_heads, s.head_width)
        attended = F.scaled_dot_product_attention(grouped, keys[at.slots], values[at.slots], attn_mask=at.bias)
        x = x + F.linear(attended.flatten(1), self.out)
        h = F.rms_norm(x, (s.width,), self.feed_norm)
        return x + F.linear(F.silu(F.linear(h, self.gate)) * F.linear(h, self.up), self.down)


@dataclass(slots=True)
class Step:
    """What all layers of one step share."""

    slots: Tensor  # [batch]
    cell: tuple[Tensor, Tensor]  # index of the written cells: slot and position
    bias: Tensor  # [batch, 1, 1, context]: 0 up to and including the row's own position, -inf beyond
    cos: Tensor  # [batch, 1, head_width]
    sin: Tensor  # likewise, negative in the first half

    def rotate(self, x: Tensor) -> Tensor:
        """Turn each pair (i, i + half) of `x` [batch, heads, head_width] by the row's angles."""
        return torch.addcmul(x * self.cos, x.roll(x.shape[-1] // 2, dims=-1), self.sin)


class DecodeStep(nn.Module):
    """Takes one token per row on, each row in a slot of its own, and says the next."""

    keys: Tensor
    values: Tensor
    frequencies: Tensor

    def __init__(self, sizes: Sizes, g: torch.Generator, dtype: torch.dtype, *, logits: bool) -> None:
        super().__init__()
        self.sizes = sizes
        self.logits = logits
        self.table = _matrix(g, sizes.vocabulary, sizes.width, dtype)  # embedding, and tied output layer
        self.layers = nn.ModuleList(DecodeLayer(sizes, g, dtype) for _ in range(sizes.layers))
        self.norm = nn.Parameter(torch.ones(sizes.width, dtype=dtype))
        half = torch.arange(sizes.head_width // 2) / (sizes.head_width // 2)
        self.register_buffer("frequencies", 10000.0**-half, persistent=False)
        cache = (sizes.slots, sizes.layers, sizes.kv_heads, sizes.context, sizes.head_width)
        self.register_buffer("keys", torch.zeros(cache, dtype=dtype), persistent=False)
        self.register_buffer("values", torch.zeros(cache, dtype=dtype), persistent=False)
        self.eval()

    def forward(self, tokens: Tensor, slots: Tensor, positions: Tensor) -> dict[str, Tensor]:
        """All INT64 [batch] → `next_token` INT64 [batch] and, where asked for, `logits` FP32 [batch, vocabulary].

        A row writes its cache cell (slot, position) and attends to positions 0 … position of its slot; no two rows may name one slot.
        """
        x = F.embedding(tokens, self.table)
        angle = (positions.unsqueeze(1) * self.frequencies).unsqueeze(1)
        cos, sin = angle.cos(), angle.sin()
        ahead = torch.arange(self.sizes.context, device=tokens.device) > positions[:, None]
        at = Step(
            slots=slots,
            cell=(slots, positions),
            bias=torch.zeros_like(ahead, dtype=x.dtype).masked_fill(ahead, float("-inf"))[:, None, None, :],
            cos=torch.cat((cos, cos), dim=-1).to(x.dtype),
            sin=torch.cat((-sin, sin), dim=-1).to(x.dtype),
        )
        for index, layer in enumerate(self.layers):
            x = layer(x, self.keys[:, index], self.values[:, index], at)
        logits = F.linear(F.rms_norm(x, (self.sizes.width,), self.norm), self.table)
        outputs = {"next_token": logits.argmax(dim=-1)}
        if self.logits:
            outputs["logits"] = logits.float()
        return outputs


def _matrix(g: torch.Generator, rows: int, columns: int, dtype: torch.dtype) -> nn.Parameter:
    """Normal values. What is large repeats them from row to row at other columns: to draw a billion would take many seconds."""
    size = rows * columns
    drawn = (torch.randn(min(size, _DRAWN), generator=g) * columns**-0.5).to(dtype)
    return nn.Parameter(drawn.repeat(-(-size // len(drawn)))[:size].view(rows, columns))
