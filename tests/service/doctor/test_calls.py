from __future__ import annotations

from types import SimpleNamespace

import pytest

from cachepolicy.reasons import RefusalReason
from service.doctor.calls import watch_waits
from service.doctor.hostdata import HostData


class Pad:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.host = HostData(())
        self.calls: list[tuple[RefusalReason, str]] = []

    def noted(self) -> int:
        """How many calls were told."""
        return len(self.calls)

    def call_blocked(self, reason: RefusalReason, call: str, what: str = "", host: tuple[str, int] | None = None) -> None:
        """One more."""
        self.calls.append((reason, call))


def test_waits_are_noted_carried_out_and_given_back() -> None:
    """The call happens all the same; afterwards the function is the one it was, even when the step raised."""
    waited: list[int] = []
    library, pad = SimpleNamespace(wait=waited.append), Pad()
    original = library.wait

    def step() -> None:
        with watch_waits(pad, [(library, "wait", "library.wait"), (library, "absent", "")]):
            library.wait(5)
            raise RuntimeError("the step")

    with pytest.raises(RuntimeError, match="the step"):
        step()
    assert waited == [5]
    assert pad.calls == [(RefusalReason.SYNC, "library.wait")]
    assert library.wait == original
    library.wait(6)
    assert len(pad.calls) == 1
