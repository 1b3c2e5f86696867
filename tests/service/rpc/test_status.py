"""The table from exceptions to statuses."""

from __future__ import annotations

import logging

import grpc
import pytest

from cachepolicy.reasons import RefusalReason
from service import errors
from service.rpc.status import MAX_MESSAGE, PUSHBACK, status_of

Code = grpc.StatusCode

EXPECTED: list[tuple[Exception, grpc.StatusCode]] = [
    (errors.BadInput("x", "wrong"), Code.INVALID_ARGUMENT),
    (errors.ConfigError("wrong"), Code.INVALID_ARGUMENT),
    (errors.UnknownModel("m"), Code.NOT_FOUND),
    (errors.Overloaded("full"), Code.RESOURCE_EXHAUSTED),
    (errors.OutOfDeviceMemory("full"), Code.RESOURCE_EXHAUSTED),
    (errors.DeadlinePassed("late"), Code.DEADLINE_EXCEEDED),
    (errors.Unavailable("draining"), Code.UNAVAILABLE),
    (errors.DeviceLost("sticky"), Code.UNAVAILABLE),
    (errors.CaptureRefused(RefusalReason.RNG), Code.FAILED_PRECONDITION),
    (errors.NotYetProvable("no values"), Code.FAILED_PRECONDITION),
    (errors.Conflict("up already"), Code.FAILED_PRECONDITION),
    (errors.NotSupported("not built"), Code.UNIMPLEMENTED),
    (errors.ModelRaised(ZeroDivisionError("by zero")), Code.INTERNAL),
]


@pytest.mark.parametrize(("error", "code"), EXPECTED, ids=lambda value: type(value).__name__)
def test_error_has_its_status_and_keeps_its_message(error: Exception, code: grpc.StatusCode) -> None:
    """The interface's table, line by line."""
    status = status_of(error)
    assert status.code is code
    assert status.message == str(error)


def test_every_error_of_the_project_is_in_the_table() -> None:
    """An error class that is added has to be given a status."""

    def below(kind: type[Exception]) -> set[type[Exception]]:
        return {kind}.union(*(below(sub) for sub in kind.__subclasses__()))

    declared = {kind for kind in below(errors.GraphcacheError) if kind.__module__ == errors.__name__}
    assert declared - {errors.GraphcacheError} == {type(error) for error, _ in EXPECTED}


def test_a_models_own_error_names_its_type() -> None:
    """Whoever wrote the model recognises the exception."""
    assert status_of(errors.ModelRaised(ZeroDivisionError("by zero"))).message == "ZeroDivisionError: by zero"


def test_an_unexpected_error_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """The client learns nothing of the inside; the log has the traceback."""
    with caplog.at_level(logging.ERROR):
        status = status_of(KeyError("secret"))
    assert (status.code, status.message) == (Code.INTERNAL, "internal error")
    assert "secret" in caplog.text


@pytest.mark.parametrize(("retry_after_s", "trailer"), [(0.0204, "21"), (0.0, "0"), (-1.0, "-1")])
def test_retry_pushback_is_in_milliseconds(retry_after_s: float, trailer: str) -> None:
    """Rounded up, so that nobody comes back too early; below zero means never."""
    assert status_of(errors.Overloaded("full", retry_after_s)).trailers == ((PUSHBACK, trailer),)


def test_no_pushback_where_the_time_is_unknown() -> None:
    """Clients then use their own backoff."""
    assert status_of(errors.Overloaded("full")).trailers == ()
    assert status_of(errors.OutOfDeviceMemory("full")).trailers == ((PUSHBACK, "1000"),)


def test_a_long_message_is_cut_to_fit_a_header() -> None:
    """A model may raise a page of text, and a client may name an input with a megabyte."""
    assert len(status_of(errors.BadInput("x" * 10**6, "wrong")).message) == MAX_MESSAGE
