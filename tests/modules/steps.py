"""Small steps: what can be recorded, and one step for each reason why not."""

# mypy: disable-error-code="no-any-return"
# (calling a submodule has no type)

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from cachepolicy.reasons import RefusalReason


class Echo(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Aliasing(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        score = x * 3 + 1
        return {"echo": x, "score": score, "again": score, "half": score[:, :2]}


class Encoder(nn.Module):
    """One layer of masked attention over token embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.mix = nn.Linear(16, 48)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        q, k, v = self.mix(self.embed(tokens)).unsqueeze(1).chunk(3, -1)
        hidden = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :]).squeeze(1)
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        return {"pooled": (hidden * weight).sum(1) / weight.sum(1), "hidden": hidden}


class FillSpy(nn.Module):
    """Shows its whole static inputs."""

    def forward(self, x: torch.Tensor, valid: torch.Tensor, length: torch.Tensor, position: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"whole": x.flatten(), "valid": valid.flatten(), "length": length.flatten(), "position": position.flatten()}


class Counter(nn.Module):
    """Adds each row to the running total of its slot: 16 slots for requests, one for padding."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(17, 4))

    def forward(self, x: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        self.total[slot] = self.total[slot] * 0.5 + x
        return self.total[slot] * 2


class Chosen(nn.Module):
    def forward(self, x: torch.Tensor, sign: str) -> torch.Tensor:
        return {"plus": 1.0, "minus": -1.0, "zero": 0.0}[sign] * x


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Aggregate(nn.Module):
    """matmul and bmm beside a linear layer: several kinds of kernels with workspaces."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 64)
        self.mix = nn.Parameter(torch.randn(64, 64) * 0.1)
        self.down = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x) @ self.mix
        h = torch.bmm(h.view(-1, 8, 8), h.view(-1, 8, 8).transpose(1, 2)).reshape(-1, 64)
        return self.down(h)


# -- what must be refused


class BranchesOnValue(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum().item() > 0 else x - 1


class GoesThroughNumpy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.cpu().numpy() * 2).to(x.device)


class ReadsAList(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(sum(x[0].tolist()))


class ComparesAll(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if torch.equal(x, x * 2) else x * 2


class CountsNonzero(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x.nonzero().shape[0]


class FindsUnique(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.unique(x).sum()


class MaskedSum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x[x > 0].sum()


class SelectsByMask(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0]


class WritesItsInput(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2) + 1


class WritesAViewOfItsInput(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x[:, 0] = 0
        return x * 2


class WritesItsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data.clamp_(-1, 1)
        return x * self.weight


class CountsCalls(nn.Module):
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


class KeepsAPlainTensor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("start", torch.zeros(4))
        self.last = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.last.to(x.device) if self.last.device != x.device else self.last
        out = x + self.last
        self.last.copy_(x[0])
        return out


class Noise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)


class DropoutInEval(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, 0.5, training=True)


class OwnGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator: torch.Generator | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.generator is None:
            self.generator = torch.Generator(x.device)
        return x + torch.rand(x.shape, generator=self.generator, device=x.device)


class HasANorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


class DropsRows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[: max(1, x.shape[0] - 2)]


class RaisesWhileRecorded(nn.Module):
    """Works eagerly; raises once it is recorded, on whatever device."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.repeat(1, 256) * 2
        if type(x) is not torch.Tensor or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
            raise RuntimeError("does not like to be recorded")
        return h[:, :4]


class Fails(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("nothing here")


class WrongType(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double()


REFUSED: list[tuple[type[nn.Module], RefusalReason]] = [
    (BranchesOnValue, RefusalReason.SYNC),
    (GoesThroughNumpy, RefusalReason.SYNC),
    (ReadsAList, RefusalReason.SYNC),
    (ComparesAll, RefusalReason.SYNC),
    (CountsNonzero, RefusalReason.DATA_DEPENDENT),
    (FindsUnique, RefusalReason.DATA_DEPENDENT),
    (MaskedSum, RefusalReason.DATA_DEPENDENT),
    (WritesItsInput, RefusalReason.INPUT_MUTATION),
    (WritesAViewOfItsInput, RefusalReason.INPUT_MUTATION),
    (WritesItsWeight, RefusalReason.PARAMETER_MUTATION),
    (CountsCalls, RefusalReason.STATEFUL),
    (KeepsAPlainTensor, RefusalReason.STATEFUL),
    (Noise, RefusalReason.NONDETERMINISTIC),
    (DropoutInEval, RefusalReason.NONDETERMINISTIC),
    (OwnGenerator, RefusalReason.RNG),
    (DropsRows, RefusalReason.OUTPUT_SHAPE),
]


# -- what must not be refused


class BuiltOnFirstCall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head: nn.Linear | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.head is None:
            self.head = nn.Linear(4, 4).to(x.device)
            self.register_buffer("place", torch.linspace(-1, 1, 4).to(x.device))
        return self.head(x + self.get_buffer("place"))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(1, 4, num_layers=2, dropout=0.3, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rnn(x.unsqueeze(-1))[0][:, -1]


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            h = self.layer(torch.relu(self.layer(x)))
        return h.float()


class DropoutLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.unsqueeze(1).expand(-1, 3, -1)
        return self.attention(h, h, h, need_weights=False)[0][:, 0]


class MaskedWrite(nn.Module):
    """Writes one number where a mask says so: a fixed size, unlike reading by a mask."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x * 2
        h[x > 0] = 0.5
        return h


class KeepsItsLastResult(nn.Module):
    """Leaves a tensor behind for whoever wants to look at it, and never reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x * 2
        return self.last + 1


class WritesItsOwnTemporary(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros_like(x)
        h[:, 1:] = x[:, :-1]
        return h.add_(1).cumsum(1)


ACCEPTED: list[type[nn.Module]] = [
    BuiltOnFirstCall,
    Recurrent,
    Autocast,
    DropoutLayer,
    Attention,
    MaskedWrite,
    KeepsItsLastResult,
    WritesItsOwnTemporary,
    Wide,
    Aggregate,
]
