"""Log lines for people or for machines, with the trace of the request in hand, and a bound on lines of one kind."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import TextIO

from service.choices import LogFormat
from service.telemetry import tracing

PER_KIND = 10  # lines of one kind in a period: same logger, same text before its arguments are filled in
PERIOD_S = 60.0
_KINDS = 1024  # are remembered


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (trace := tracing.current()) is not None:
            line["trace_id"] = trace.trace_id
        if (left_out := getattr(record, "left_out", 0)) > 0:
            line["left_out"] = left_out
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Time, level, where, what."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        line = super().format(record)
        if (trace := tracing.current()) is not None:
            line += f" (trace {trace.trace_id})"
        if (left_out := getattr(record, "left_out", 0)) > 0:
            line += f" ({left_out} more like this were left out)"
        return line


class Restraint(logging.Filter):
    """Lets so many lines of one kind through in a period; the first of the next says how many were left out."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, str], list[float]] = {}  # when its period began, lines in it

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging.Filter."""
        now, key = self._clock(), (record.name, str(record.msg))
        kind = self._kinds.get(key)
        if kind is None or now - kind[0] >= PERIOD_S:
            record.left_out = 0 if kind is None else max(0, int(kind[1]) - PER_KIND)
            if len(self._kinds) >= _KINDS:
                self._kinds.clear()
            self._kinds[key] = [now, 1]
            return True
        kind[1] += 1
        return kind[1] <= PER_KIND


def configure(how: LogFormat, to: TextIO = sys.stderr) -> None:
    """Send this program's log lines there: warnings as text, or everything from `info` on as JSON."""
    handler = logging.StreamHandler(to)
    handler.setFormatter(JsonFormatter() if how is LogFormat.JSON else TextFormatter())
    handler.addFilter(Restraint())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    logging.getLogger("service").setLevel(logging.INFO if how is LogFormat.JSON else logging.WARNING)
