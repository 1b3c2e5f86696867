"""The alarm `graphs effectively off`: of all executed requests too many run eagerly, for too long, whatever the reason.

The threshold is absolute. A worker that never replayed anything is a stable slow baseline: nothing stands out against its past.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import dataclass, field

from cachepolicy.reasons import FallbackReason, hint_for

log = logging.getLogger(__name__)

_SLOT_S = 5.0  # requests are counted by slots of this length


@dataclass(frozen=True, slots=True)
class Threshold:
    """On once `share` of at least `least` requests within `window_s` seconds were eager, at each look for `hold_s` seconds.

    Off once the share is below `clear`.
    """

    share: float = 0.9
    clear: float = 0.8
    least: int = 10
    window_s: float = 120.0
    hold_s: float = 120.0


@dataclass(slots=True)
class _Slot:
    start: float
    replayed: int = 0
    eager: Counter[tuple[FallbackReason, str]] = field(default_factory=Counter)


@dataclass(slots=True)
class _Model:
    slots: deque[_Slot] = field(default_factory=deque)
    since: float | None = None  # when the share began to be above the threshold
    on: str = ""


class GraphsOff:
    """Counts executed requests of each model and says whose graphs are effectively off. Written on one thread; times are passed in."""

    def __init__(self, threshold: Threshold = Threshold()) -> None:
        self._threshold = threshold
        self._models: dict[str, _Model] = {}

    @property
    def on(self) -> dict[str, str]:
        """Models whose alarm is on, and why."""
        return {name: model.on for name, model in list(self._models.items()) if model.on}

    @property
    def watched(self) -> dict[str, bool]:
        """Every model that executed a request, and whether its alarm is on."""
        return {name: bool(model.on) for name, model in list(self._models.items())}

    def count(self, name: str, reason: FallbackReason | None, detail: str, now: float) -> None:
        """One executed request; `reason` None means that it was replayed."""
        slots = self._models.setdefault(name, _Model()).slots
        if not slots or now - slots[-1].start >= _SLOT_S:
            slots.append(_Slot(now))
        if reason is None:
            slots[-1].replayed += 1
        else:
            slots[-1].eager[reason, _kind(reason, detail)] += 1

    def look(self, now: float) -> None:
        """Judge every model; an alarm that goes on or off is logged once. Where too few requests came, it stays as it is."""
        for name, model in self._models.items():
            while model.slots and now - model.slots[0].start > self._threshold.window_s:
                model.slots.popleft()
            eager = sum((slot.eager for slot in model.slots), Counter[tuple[FallbackReason, str]]())
            executed = eager.total() + sum(slot.replayed for slot in model.slots)
            if executed < self._threshold.least:
                continue
            share = eager.total() / executed
            if share < (self._threshold.clear if model.on else self._threshold.share):
                if model.on:
                    log.warning("graphs of %s are in use again: %.0f %% of its requests are replayed", name, 100 * (1 - share))
                model.since, model.on = None, ""
                continue
            model.since = now if model.since is None else model.since
            if now - model.since >= self._threshold.hold_s:
                told = f"{share:.0%} of {executed} requests within {self._threshold.window_s:.0f} s ran eagerly, mostly {_main(eager)}"
                if not model.on:
                    log.error("graphs of %s are effectively off: %s", name, told)
                model.on = told

    def forget(self, name: str) -> None:
        """The model is gone."""
        self._models.pop(name, None)


def _kind(reason: FallbackReason, detail: str) -> str:
    """What tells cases of a reason apart, from a closed set: the refusal's name."""
    return detail.partition(":")[0] if reason is FallbackReason.REFUSED else ""


def _main(eager: Counter[tuple[FallbackReason, str]]) -> str:
    (reason, kind), _ = eager.most_common(1)[0]
    hint = hint_for(reason, kind)
    return f"{reason}: {kind}. {hint}" if kind else f"{reason}. {hint}"
