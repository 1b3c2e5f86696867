"""Log lines: for people and for machines, with their trace, and never a flood of one kind."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from service.choices import LogFormat
from service.telemetry import logs
from service.telemetry.logs import PER_KIND, PERIOD_S, Restraint
from service.telemetry.tracing import Tracer, enter, leave
from tests.traced import Kept


@pytest.fixture
def written(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """What is logged; the program's own set-up comes back afterwards."""
    root, service = logging.getLogger(), logging.getLogger("service")
    before, level = root.handlers[:], service.level
    text = io.StringIO()
    logs.configure(request.param, text)
    yield text
    root.handlers[:] = before
    service.setLevel(level)


@pytest.mark.parametrize("written", [LogFormat.JSON], indirect=True)
def test_each_line_is_an_object_with_its_trace(written: io.StringIO) -> None:
    """Time, level, logger, message; the trace of the request in hand; an exception as text."""
    log = logging.getLogger("service.somewhere")
    log.info("%d graphs", 3)
    trace = Tracer(Kept(), ratio=1.0, keep=frozenset()).begin("method", None)
    token = enter(trace)
    try:
        raise ValueError("a\nb")  # noqa: TRY301 - to be logged
    except ValueError:
        log.exception("went wrong")
    leave(token)
    first, second = (json.loads(line) for line in written.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("info", "service.somewhere", "3 graphs")
    assert first["time"].endswith("+00:00")
    assert "trace_id" not in first
    assert second["trace_id"] == trace.trace_id
    assert second["exception"].endswith("ValueError: a\nb")


@pytest.mark.parametrize("written", [LogFormat.TEXT], indirect=True)
def test_people_get_warnings(written: io.StringIO) -> None:
    """What went as it should is no line."""
    log = logging.getLogger("service.somewhere")
    log.info("captured")
    log.warning("retired")
    (line,) = written.getvalue().splitlines()
    assert line.endswith("WARNING service.somewhere: retired")


def test_lines_of_one_kind_are_bounded_and_others_are_not_lost_by_it() -> None:
    """A kind is a text before its arguments are filled in; the next period begins with how many were left out."""
    now = 0.0
    restraint = Restraint(lambda: now)

    def passes(message: str, argument: int) -> logging.LogRecord | None:
        record = logging.LogRecord("service.x", logging.WARNING, "", 0, message, (argument,), None)
        return record if restraint.filter(record) else None

    assert sum(passes("request %d failed", number) is not None for number in range(100)) == PER_KIND
    assert passes("another %d", 1) is not None
    now = PERIOD_S
    later = passes("request %d failed", 100)
    assert later is not None
    assert later.left_out == 100 - PER_KIND  # type: ignore[attr-defined] # the filter's own
