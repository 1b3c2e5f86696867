"""What a graph of a proven step can serve: which sizes, and whether requests may share a batch."""

from __future__ import annotations

from dataclasses import dataclass

from service.backends.base import Padding
from service.choices import Rows
from service.recorder import Verdict

_EXACT = "a graph serves batches of exactly a bucket's size only"
_ALONE = "requests never share a batch"
_CURE = "Compute what is shared by the batch (a mean, a maximum, a place) for each row by itself"
_MASK = (
    "Add the sizes of the traffic to the axis' buckets, or tell the model what is real (`fill: valid`, `fill: length`), to mask the rest"
)
_SIZES = "declare `rows: dependent` and add the sizes of the traffic to the axis' buckets"


@dataclass(frozen=True, slots=True)
class Serving:
    """What the proofs found. `independent`: whether a row's answer is its own; None where that was not tried."""

    verdict: Verdict
    independent: bool | None
    declared: Rows

    @property
    def padding(self) -> str:
        """What padding rows hold; empty where nothing may be padded."""
        return "" if self.verdict.exact_only else str(self.verdict.padding.value)

    def notes(self) -> list[tuple[str, str]]:
        """What is worth knowing, each with what to do about it."""
        if self.independent is not False:
            return [(f"padding changes the answer, so {_EXACT}: {self.verdict.detail}", f"{_MASK}.")] if self.verdict.exact_only else []
        found = "rows depend on each other"
        if self.declared is Rows.INDEPENDENT:
            wrong = f"{found}, which contradicts `rows: independent`: merged requests are answered wrong"
            return [(wrong, f"{_CURE}, or {_SIZES}.")]
        if self.verdict.exact_only:
            return [(f"{found}: {_EXACT}, and {_ALONE}: {self.verdict.detail}", f"{_CURE}, or {_SIZES}.")]
        repeats = self.verdict.padding is Padding.REPEAT
        how = "padding repeats the last row, which leaves the answer right" if repeats else "padding is right all the same"
        return [(f"{found}: {_ALONE}; {how}", f"{_CURE}, or declare `rows: dependent`.")]
