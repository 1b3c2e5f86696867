"""Random small modules, put together from safe and unsafe pieces. A seed names a module: `RandomStep(seed)`.

Every piece takes and gives x [batch, 4, 8] in FP32; t INT64 [batch, 4] holds 0 … 9.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own habit)

from cachepolicy.buckets import Bucket
from service.errors import CaptureRefused
from service.models.spec import AxisSpec, InputSpec, OutputSpec
from service.recorder import Verdict
from service.tensors import Datatype
from service.verification.comparing import relative_distance
from tests.service.verification.benches import Bench, value

WIDTH, LENGTH = 8, 4
INPUTS = (
    InputSpec("x", Datatype.FP32, ("batch", LENGTH, WIDTH)),
    InputSpec("t", Datatype.INT64, ("batch", LENGTH), range=(0, 9)),
)

Function = Callable[[Tensor, Tensor], Tensor]


class Calls:
    """Counts beside all modules."""

    number = 0


class Piece(nn.Module):
    """One step; its weights are drawn when it is made."""

    state: Tensor

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.other = nn.Linear(WIDTH, WIDTH)
        self.norm: nn.Module = nn.LayerNorm(WIDTH)
        self.batch_norm = nn.BatchNorm1d(LENGTH)
        self.table = nn.Embedding(10, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True)
        self.group_norm = nn.GroupNorm(2, LENGTH)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.conv = nn.Conv1d(LENGTH, LENGTH, 3, padding=1)
        self.register_buffer("state", torch.zeros(WIDTH))
        self.calls = 0
        self.past: list[float] = []
        self.factors = itertools.cycle([1.0] * 60 + [2.0])
        self.before: Tensor | None = None
        self.built: Tensor | None = None

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """X of the same shape."""
        y: Tensor = getattr(self, self.name)(x, t)
        return y

    # -- safe

    def dense(self, x: Tensor, t: Tensor) -> Tensor:
        return self.linear(x)  # type: ignore[no-any-return]

    def residual(self, x: Tensor, t: Tensor) -> Tensor:
        return x + self.other(F.gelu(self.linear(self.norm(x))))  # type: ignore[no-any-return]

    def attend(self, x: Tensor, t: Tensor) -> Tensor:
        return x + self.attention(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]

    def masked_attention(self, x: Tensor, t: Tensor) -> Tensor:
        keep = (t > 2)[:, None, :] | torch.eye(LENGTH, dtype=torch.bool, device=x.device)
        return F.scaled_dot_product_attention(x, self.linear(x), x, attn_mask=keep)

    def recurrent(self, x: Tensor, t: Tensor) -> Tensor:
        return self.rnn(x)[0]  # type: ignore[no-any-return]

    def convolve(self, x: Tensor, t: Tensor) -> Tensor:
        return F.relu(self.batch_norm(self.conv(x)))

    def look_up(self, x: Tensor, t: Tensor) -> Tensor:
        return x + self.table(t)  # type: ignore[no-any-return]

    def in_place_on_own(self, x: Tensor, t: Tensor) -> Tensor:
        y = self.linear(x)
        y.mul_(0.5).relu_()
        y[:, 0] += 1
        return y  # type: ignore[no-any-return]

    def in_place_on_view(self, x: Tensor, t: Tensor) -> Tensor:
        y = x.clone()
        y.transpose(1, 2)[:, :3].copy_(self.linear(x).transpose(1, 2)[:, 2:5])
        return y

    def where_values(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.where(x > 0, self.linear(x), t[:, :, None].to(x.dtype))

    def reorder(self, x: Tensor, t: Tensor) -> Tensor:
        return x.sort(dim=2).values.flip(1)

    def turn(self, x: Tensor, t: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(x.shape[0], -1).view(-1, LENGTH, WIDTH)

    def in_half(self, x: Tensor, t: Tensor) -> Tensor:
        y: Tensor = F.linear(x.bfloat16(), self.linear.weight.bfloat16()).float()
        return y

    def in_double(self, x: Tensor, t: Tensor) -> Tensor:
        y: Tensor = x.double() @ self.linear.weight.double()
        return y.float()

    def row_norm(self, x: Tensor, t: Tensor) -> Tensor:
        return x / x.square().sum(dim=(1, 2), keepdim=True).sqrt()

    def logarithm(self, x: Tensor, t: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y.log()

    def dropout_in_eval(self, x: Tensor, t: Tensor) -> Tensor:
        return F.dropout(x, 0.5, training=self.training)

    def branch_on_width(self, x: Tensor, t: Tensor) -> Tensor:
        return self.linear(x) if x.shape[2] > 4 else self.other(x)  # type: ignore[no-any-return]

    def lazy_table(self, x: Tensor, t: Tensor) -> Tensor:
        if self.built is None:
            self.built = torch.linspace(-1, 1, WIDTH, device=x.device)
        return x * self.built

    def integer_detour(self, x: Tensor, t: Tensor) -> Tensor:
        return x + (t * 3 // 2).to(x.dtype)[:, :, None]

    def norms(self, x: Tensor, t: Tensor) -> Tensor:
        y: Tensor = self.group_norm(x)
        return y + F.instance_norm(x) + F.rms_norm(x, (WIDTH,))

    def spectrum(self, x: Tensor, t: Tensor) -> Tensor:
        y: Tensor = torch.fft.irfft(torch.fft.rfft(x) * (1 + 0.5j), n=WIDTH)
        return y

    def scatter_in_row(self, x: Tensor, t: Tensor) -> Tensor:
        return x.scatter_add(2, t[:, :, None] % WIDTH, x[:, :, :1])

    def windows(self, x: Tensor, t: Tensor) -> Tensor:
        return F.pad(x, (1, 1)).unfold(2, 3, 1).sum(dim=3)

    def order_statistics(self, x: Tensor, t: Tensor) -> Tensor:
        return x.cummax(dim=2).values - x.median(dim=1, keepdim=True).values

    def row_by_row(self, x: Tensor, t: Tensor) -> Tensor:
        y: Tensor = torch.func.vmap(lambda row: row - row.mean())(x)
        return y

    def conjugate(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.complex(x, self.linear(x)).conj().imag

    # -- depends on the batch

    def batch_quantile(self, x: Tensor, t: Tensor) -> Tensor:
        return x - x.quantile(0.3, dim=0, keepdim=True)

    def dynamic_scale(self, x: Tensor, t: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        unit = (y.amax().clamp(min=0) - y.amin().clamp(max=0)) / 255
        return (y / unit).round() * unit

    def last_row(self, x: Tensor, t: Tensor) -> Tensor:
        return x + x[-1:]

    def first_row(self, x: Tensor, t: Tensor) -> Tensor:
        return x + x[:1]

    def halves(self, x: Tensor, t: Tensor) -> Tensor:
        middle = x.shape[0] // 2
        return torch.cat([self.linear(x[:middle]), x[middle:]])

    def batch_mean(self, x: Tensor, t: Tensor) -> Tensor:
        return x - x.mean(dim=0, keepdim=True)

    def batch_max(self, x: Tensor, t: Tensor) -> Tensor:
        return x - x.amax(dim=0, keepdim=True)

    def batch_scale(self, x: Tensor, t: Tensor) -> Tensor:
        return x / x.abs().max().clamp(min=20.0)

    def batch_softmax(self, x: Tensor, t: Tensor) -> Tensor:
        return x.softmax(dim=0)

    def batch_sort(self, x: Tensor, t: Tensor) -> Tensor:
        return x.sort(dim=0).values

    def batch_roll(self, x: Tensor, t: Tensor) -> Tensor:
        return x + x.roll(1, dims=0)

    def batch_sum_so_far(self, x: Tensor, t: Tensor) -> Tensor:
        return x.cumsum(dim=0)

    def gram(self, x: Tensor, t: Tensor) -> Tensor:
        rows = x.flatten(1)
        return (rows @ rows.T @ rows / 100).view_as(x)

    def live_batch_norm(self, x: Tensor, t: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, training=True)

    def route(self, x: Tensor, t: Tensor) -> Tensor:
        room = -(-x.shape[0] // 3)
        chosen = F.one_hot(t[:, 0] % 3, 3)
        kept = (chosen.cumsum(dim=0) * chosen).sum(dim=1) <= room
        return torch.where(kept[:, None, None], self.linear(x), x)

    def per_size(self, x: Tensor, t: Tensor) -> Tensor:
        return x * (1 + 1 / x.shape[0])

    def branch_on_size(self, x: Tensor, t: Tensor) -> Tensor:
        return self.linear(x) if x.shape[0] > 2 else self.other(x)  # type: ignore[no-any-return]

    def odd_sizes(self, x: Tensor, t: Tensor) -> Tensor:
        return -x if x.shape[0] % 2 else x

    def place(self, x: Tensor, t: Tensor) -> Tensor:
        return x + torch.arange(x.shape[0], device=x.device).view(-1, 1, 1)

    # -- reads values

    def branch_on_value(self, x: Tensor, t: Tensor) -> Tensor:
        return self.linear(x) if x.sum() > 0 else self.other(x)  # type: ignore[no-any-return]

    def select(self, x: Tensor, t: Tensor) -> Tensor:
        y = x.clone()
        y[t > 5] = self.linear(x[t > 5])
        return y

    def assign_number(self, x: Tensor, t: Tensor) -> Tensor:
        y = x.clone()
        y[t > 5] = 0.5
        return y

    def item(self, x: Tensor, t: Tensor) -> Tensor:
        return x * (1 + int(t.max()))

    def numpy(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.from_numpy(x.cpu().numpy() * 2).to(x.device)

    # -- state, randomness, mutation

    def buffer_state(self, x: Tensor, t: Tensor) -> Tensor:
        self.state.add_(x.mean(dim=(0, 1)))
        return x + self.state

    def attribute_state(self, x: Tensor, t: Tensor) -> Tensor:
        y = x if self.before is None else x + self.before
        self.before = x.mean()
        return y

    def rare_state(self, x: Tensor, t: Tensor) -> Tensor:
        self.calls += 1
        return -x if self.calls % 40 == 0 else x

    def list_state(self, x: Tensor, t: Tensor) -> Tensor:
        self.past.append(1.0)
        return x + sum(self.past[40:])

    def rebound_state(self, x: Tensor, t: Tensor) -> Tensor:
        self.state = 0.9 * self.state + x.mean(dim=(0, 1))
        return x + self.state

    def iterator_state(self, x: Tensor, t: Tensor) -> Tensor:
        return x * next(self.factors)

    def class_state(self, x: Tensor, t: Tensor) -> Tensor:
        Calls.number += 1
        return -x if Calls.number % 1000 == 999 else x

    def clock(self, x: Tensor, t: Tensor) -> Tensor:
        return x + time.time() // 3600 % 24

    def first_call(self, x: Tensor, t: Tensor) -> Tensor:
        if self.built is None:
            self.built = x.std()
        return x / self.built

    def dropout(self, x: Tensor, t: Tensor) -> Tensor:
        return F.dropout(x, 0.2, training=True)

    def noise(self, x: Tensor, t: Tensor) -> Tensor:
        return x + 1e-3 * torch.randn_like(x)

    def host_noise(self, x: Tensor, t: Tensor) -> Tensor:
        return x * (1 + random.random() / 100)

    def write_input(self, x: Tensor, t: Tensor) -> Tensor:
        return x.mul_(2)

    def write_weight(self, x: Tensor, t: Tensor) -> Tensor:
        self.linear.weight.data.mul_(0.99)
        return self.linear(x)  # type: ignore[no-any-return]


SAFE = (
    "dense residual attend masked_attention recurrent convolve look_up in_place_on_own in_place_on_view where_values reorder turn in_half "
    "in_double row_norm logarithm dropout_in_eval branch_on_width lazy_table integer_detour assign_number place "
    "norms spectrum scatter_in_row windows order_statistics row_by_row conjugate"
).split()
UNSAFE = (
    "batch_mean batch_max batch_scale batch_softmax batch_sort batch_roll batch_sum_so_far gram live_batch_norm route per_size "
    "branch_on_size odd_sizes branch_on_value select item numpy buffer_state attribute_state rare_state list_state first_call dropout "
    "noise host_noise write_input write_weight "
    "batch_quantile dynamic_scale last_row first_row halves rebound_state iterator_state class_state clock"
).split()
FORMS: dict[str, tuple[OutputSpec, ...]] = {
    "whole": (OutputSpec("y", Datatype.FP32, ("batch", LENGTH, WIDTH)),),
    "views": (
        OutputSpec("y", Datatype.FP32, ("batch", LENGTH, WIDTH)),
        OutputSpec("part", Datatype.FP32, ("batch", WIDTH)),
        OutputSpec("turned", Datatype.FP32, (WIDTH, "batch")),
    ),
    "echo": (OutputSpec("y", Datatype.FP32, ("batch", LENGTH, WIDTH)), OutputSpec("x", Datatype.FP32, ("batch", LENGTH, WIDTH))),
    "decision": (OutputSpec("y", Datatype.FP32, ("batch", LENGTH, WIDTH)), OutputSpec("best", Datatype.INT64, ("batch",))),
    "aliases": (
        OutputSpec("y", Datatype.FP32, ("batch", LENGTH, WIDTH)),
        OutputSpec("again", Datatype.FP32, ("batch", LENGTH, WIDTH)),
        OutputSpec("back", Datatype.FP32, ("batch", LENGTH, WIDTH // 2)),
        OutputSpec("spread", Datatype.FP32, ("batch", LENGTH, 3)),
    ),
    "total": (OutputSpec("y", Datatype.FP32, ("batch", LENGTH, WIDTH)), OutputSpec("total", Datatype.FP32, (WIDTH,))),
}


class RandomStep(nn.Module):
    """Two to five pieces in a row, and one form of outputs."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        choice = random.Random(seed)
        unsafe = choice.choice([0, 0, 1, 1, 2])
        names = [choice.choice(SAFE) for _ in range(choice.randint(1, 3))] + [choice.choice(UNSAFE) for _ in range(unsafe)]
        choice.shuffle(names)
        self.names = names
        self.form = choice.choice(list(FORMS))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.pieces = nn.ModuleList(Piece(name) for name in names)

    @property
    def safe(self) -> bool:
        """Whether it must be admitted."""
        return all(name in SAFE for name in self.names)

    def forward(self, x: Tensor, t: Tensor) -> dict[str, Tensor]:
        """See FORMS."""
        y = x
        for piece in self.pieces:
            y = piece(y, t)
        outputs = {"y": y}
        match self.form:
            case "views":
                outputs |= {"part": y[:, 1], "turned": y[:, 2].t()}
            case "echo":
                outputs["x"] = x
            case "decision":
                outputs["best"] = y.sum(dim=1).argmax(dim=1)
            case "aliases":
                outputs |= {"again": y, "back": y.flip(1)[:, :, ::2], "spread": y[:, :, :1].expand(-1, -1, 3)}
            case "total":
                outputs["total"] = y.sum(dim=(0, 1))
            case _:
                pass
        return outputs


def example(batch: int, seed: int) -> dict[str, Tensor]:
    """Inputs of some magnitude."""
    g = torch.Generator().manual_seed(seed)
    magnitude = (0.1, 1.0, 30.0)[seed % 3]
    return {
        "x": magnitude * torch.randn(batch, LENGTH, WIDTH, generator=g),
        "t": torch.randint(0, 10, (batch, LENGTH), generator=g),
    }


def check(bench: Bench, seed: int) -> str:
    """Admit a random module and compare its replies with a fresh instance's; returns what became of it. Raises AssertionError."""
    fresh = RandomStep(seed).to(bench.device).eval()
    size = (4, 8, 7)[seed % 3]
    axes = (AxisSpec("batch", 8, (size, 8) if size < 8 else (8,)),)
    model = bench.of_module(partial(RandomStep, seed), inputs=INPUTS, outputs=FORMS[fresh.form], axes=axes)
    story = f"module {seed}: {', '.join(fresh.names)}; {fresh.form}; bucket {size}"
    try:
        recording, verdict = bench.admit(model, Bucket.of(batch=size))
    except CaptureRefused as refusal:
        if fresh.safe:
            raise AssertionError(f"{story}: refused") from refusal
        return f"refused: {refusal.reason}"
    if fresh.safe and fresh.form != "total" and "logarithm" not in fresh.names:  # logarithms may leave too little to prove padding by
        assert verdict == Verdict(), story
    rounding = 5e-2 if "in_half" in fresh.names else 1e-4
    for batch in [size] if verdict.exact_only else [size, *range(1, size)]:
        inputs = example(batch, 1000 * seed + batch)
        with torch.no_grad():
            outputs = fresh(**{name: tensor.to(bench.device, copy=True) for name, tensor in inputs.items()})
        expected = {name: tensor.cpu().resolve_neg() for name, tensor in outputs.items()}
        reply = bench.replay(recording, inputs, {"batch": batch}, verdict.padding)
        for name, tensor in expected.items():
            got = value(reply[name])
            assert got.shape == tensor.shape, f"{story}: {name} at {batch}"
            if not tensor.is_floating_point():
                assert (got == tensor).all(), f"{story}: {name} at {batch}"
                continue
            finite = tensor[torch.isfinite(tensor)].abs()
            scale = np.asarray(finite.max() if finite.numel() else 0.0)
            distance = relative_distance(tensor.numpy(), got.numpy(), scale)
            assert distance < rounding, f"{story}: {name} at {batch} is off by {distance:.2g}"
    return str(verdict)
