"""Every error that crosses a module border, one class per way to answer it. `service.rpc` maps them to status codes in one table."""

from __future__ import annotations

import threading

from cachepolicy.reasons import RefusalReason


def said(error: BaseException) -> str:
    """The text of an exception; "" where giving it raises, which foreign code may do."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - whatever it is, the exception itself is what matters
        return ""


def told(error: BaseException) -> str:
    """Type and text of an exception, whatever its text does."""
    if isinstance(error, ModelRaised):
        return str(error)
    return f"{type(error).__name__}: {said(error)}"


def ends_the_program(error: BaseException) -> bool:
    """Whether this is the user's Ctrl-C: it goes to the main thread, and no model of a worker runs there."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


class GraphcacheError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(GraphcacheError):
    """The configuration or the command line is wrong; the message names the place. Exit code 2."""


class BadInput(GraphcacheError):
    """A request that can't be served as it is: INVALID_ARGUMENT, naming the input."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"input {name!r}: {problem}" if name else problem)
        self.input = name


class UnknownModel(GraphcacheError):
    """No such model or version: NOT_FOUND."""


class Overloaded(GraphcacheError):
    """Refused by request admission: RESOURCE_EXHAUSTED."""

    def __init__(self, problem: str, retry_after_s: float | None = None) -> None:
        super().__init__(problem)
        self.retry_after_s = retry_after_s


class DeadlinePassed(GraphcacheError):
    """The caller's deadline passed before the work ran: DEADLINE_EXCEEDED."""


class Unavailable(GraphcacheError):
    """Draining, not loaded, or the device is lost: UNAVAILABLE."""


class DeviceLost(Unavailable):
    """A sticky device error: nothing can be computed in this process any more. Exit code 77."""


class ModelRaised(GraphcacheError):
    """The model's own code raised: INTERNAL, with the exception's type."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(told(error))
        self.error = error


class OutOfDeviceMemory(GraphcacheError):
    """The device had no memory for the step: RESOURCE_EXHAUSTED."""


class CaptureRefused(GraphcacheError):
    """A graph may not exist: FAILED_PRECONDITION where a caller asked for it."""

    def __init__(self, reason: RefusalReason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason
        self.detail = detail

    def again(self) -> CaptureRefused:
        """The same refusal as another exception: one that is kept would keep all frames that it went through."""
        return CaptureRefused(self.reason, self.detail)


class NotYetProvable(GraphcacheError):
    """A graph can't be proven right for want of values to try it with; traffic may bring them: FAILED_PRECONDITION."""


class NotSupported(GraphcacheError):
    """A named thing that is not built: UNIMPLEMENTED."""


class Conflict(GraphcacheError):
    """The action does not fit the present state, such as loading a version that is up: FAILED_PRECONDITION."""
