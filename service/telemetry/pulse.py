"""What has to be looked at now and then whether requests come or not: the event loop's lag, the device's share of busy time, the alarm."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

from service.telemetry.alarm import GraphsOff
from service.telemetry.instruments import HistogramSeries

_EVERY_S = 0.25
_WINDOW_S = 10.0  # over which the busy share is taken


class Pulse:
    """Beats on the event loop that serves."""

    def __init__(self, busy_s: Callable[[], float], alarm: GraphsOff, lag: HistogramSeries, judged: Callable[[bool], object]) -> None:
        """`busy_s` tells how long the lane has worked so far; `judged` hears at every beat whether the alarm is on."""
        self._busy_s = busy_s
        self._alarm = alarm
        self._lag = lag
        self._judged = judged
        self._marks = deque([(monotonic(), busy_s())])

    @property
    def busy_ratio(self) -> float:
        """Share of the last seconds that the lane has worked."""
        (start, before), (end, after) = self._marks[0], self._marks[-1]
        return min(1.0, (after - before) / (end - start)) if end > start else 0.0

    async def beat(self) -> None:
        """Go on until cancelled."""
        while True:
            due = monotonic() + _EVERY_S
            await asyncio.sleep(_EVERY_S)
            now = monotonic()
            self._lag.observe(max(0.0, now - due))
            self._marks.append((now, self._busy_s()))
            while len(self._marks) > 2 and now - self._marks[0][0] > _WINDOW_S:
                self._marks.popleft()
            self._alarm.look(now)
            self._judged(bool(self._alarm.on))
