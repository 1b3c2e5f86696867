"""Models of `serve --demo`, in plain torch: one for each thing that graphs are good for.

Charter: factories that the configuration names, and the modules they build. Every weight comes from a generator of its own, so that a
model is the same in every process and building one leaves torch's global generator alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own habit)

from service.models.decode import DecodeStep, Sizes

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def mlp(width: int = 256, hidden: int = 1024, seed: int = 11) -> nn.Module:
    """Three linear layers, `x` [batch, width] → [batch, width]: a few GEMMs, the smallest useful graph."""
    g = torch.Generator().manual_seed(seed)
    return Mlp(nn.Sequential(_linear(g, width, hidden), nn.ReLU(), _linear(g, hidden, hidden), nn.ReLU(), _linear(g, hidden, width))).eval()


def chain32(width: int = 1024, length: int = 32, seed: int = 12) -> nn.Module:
    """`length` additions one after the other, `x` [batch, width] → [batch, width]: all launch cost, hardly any work."""
    return Chain(torch.randn(length, width, generator=torch.Generator().manual_seed(seed))).eval()


def encoder(
    *, vocabulary: int = 30000, width: int = 32, output: int = 256, layers: int = 4, heads: int = 2, longest: int = 512, seed: int = 13
) -> nn.Module:
    """A transformer encoder, narrow and deep: `tokens` and `mask` [batch, seq] → mean over the real tokens, projected [batch, output]."""
    return Encoder(torch.Generator().manual_seed(seed), vocabulary, width, output, longest, layers=layers, heads=heads).eval()


def adapters(
    width: int = 128, hidden: int = 256, rank: int = 8, names: Sequence[str] = ("base", "legal", "medical"), seed: int = 14
) -> nn.Module:
    """An MLP whose hidden layer has a low-rank correction per adapter; the keyword `adapter` chooses. The first name has none."""
    return Adapters(torch.Generator().manual_seed(seed), width, hidden, rank, names).eval()


def decode(
    *,
    layers: int = 4,
    width: int = 256,
    heads: int = 8,
    kv_heads: int = 2,
    hidden: int = 768,
    vocabulary: int = 4096,
    context: int = 256,
    slots: int = 64,
    scratch: int = 8,
    dtype: str = "float32",
    logits: bool = True,
    seed: int = 15,
) -> DecodeStep:
    """One Llama-shaped decode step over a KV cache of `slots + scratch` slots; see `DecodeStep`.

    Shaped as a model of a billion parameters: layers 16, width 2048, heads 32, kv_heads 8, hidden 8192, vocabulary 128256, bfloat16.
    """
    sizes = Sizes(layers, width, heads, kv_heads, hidden, vocabulary, context, slots + scratch)
    return DecodeStep(sizes, torch.Generator().manual_seed(seed), _DTYPES[dtype], logits=logits)


class Mlp(nn.Module):
    """Calls a stack of layers with `x`."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """`x` [batch, width] → `y` of the same shape."""
        return {"y": self.layers(x)}


class Chain(nn.Module):
    """Adds the rows of a table one by one."""

    def __init__(self, terms: Tensor) -> None:
        super().__init__()
        self.terms = nn.Parameter(terms)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """`x` [batch, width] → `y` of the same shape."""
        for term in self.terms.unbind():
            x = x + term
        return {"y": x}


class EncoderLayer(nn.Module):
    """Pre-norm self-attention and feed-forward."""

    def __init__(self, g: torch.Generator, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = _linear(g, width, 3 * width)
        self.out = _linear(g, width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(_linear(g, width, 4 * width), nn.GELU(), _linear(g, 4 * width, width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """`x` [batch, seq, width], `mask` BOOL [batch, 1, 1, seq] → like `x`."""
        batch, seq, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, seq, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))
        fed: Tensor = self.feed(self.feed_norm(x))
        return x + fed


class Encoder(nn.Module):
    """Embedding, layers, the mean over what the mask calls real, and a projection."""

    def __init__(self, g: torch.Generator, vocabulary: int, width: int, output: int, longest: int, *, layers: int, heads: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width, _weight=torch.randn(vocabulary, width, generator=g))
        self.places = nn.Parameter(torch.randn(longest, width, generator=g) * 0.1)
        self.layers = nn.ModuleList(EncoderLayer(g, width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.project = _linear(g, width, output, bias=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """`tokens` INT64 and `mask` BOOL [batch, seq] → `embedding` [batch, output]; rows without a real token are zero."""
        x = self.table(tokens) + self.places[: tokens.shape[1]]
        # A row that is all padding would attend to nothing, which is NaN: let it see everything, its mean is zero all the same.
        visible = (mask | ~mask.any(dim=1, keepdim=True))[:, None, None, :]
        for layer in self.layers:
            x = layer(x, visible)
        weight = mask.unsqueeze(-1).to(x.dtype)
        return {"embedding": self.project((self.norm(x) * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0))}


class Adapters(nn.Module):
    """A small MLP with per-adapter low-rank weights."""

    def __init__(self, g: torch.Generator, width: int, hidden: int, rank: int, names: Sequence[str]) -> None:
        super().__init__()
        self.up = _linear(g, width, hidden)
        self.down = _linear(g, hidden, width)
        self.corrections = nn.ModuleDict(
            {name: nn.Sequential(_linear(g, width, rank, bias=False), _linear(g, rank, hidden, bias=False)) for name in names[1:]}
        )

    def forward(self, x: Tensor, adapter: str) -> dict[str, Tensor]:
        """`x` [batch, width] → `y` of the same shape, with the correction of `adapter`."""
        h = self.up(x)
        if adapter in self.corrections:
            h = h + self.corrections[adapter](x)
        return {"y": self.down(F.gelu(h))}


def _linear(g: torch.Generator, inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """A linear layer with weights from `g`; on the meta device its constructor draws nothing from the global generator."""
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta")
    layer.weight = nn.Parameter(torch.randn(outputs, inputs, generator=g) * inputs**-0.5)
    if bias:
        layer.bias = nn.Parameter(torch.randn(outputs, generator=g) * 0.1)
    return layer
