"""One table from exceptions to gRPC statuses, and the decorator that applies it to the methods of a servicer."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import grpc

from service.errors import (
    BadInput,
    CaptureRefused,
    ConfigError,
    Conflict,
    DeadlinePassed,
    GraphcacheError,
    ModelRaised,
    NotSupported,
    NotYetProvable,
    OutOfDeviceMemory,
    Overloaded,
    Unavailable,
    UnknownModel,
)
from service.rpc.tracing import blame

log = logging.getLogger(__name__)

PUSHBACK = "grpc-retry-pushback-ms"
MEMORY_RETRY_MS = 1000  # memory that was given out comes back when other steps end, which is soon or never
MAX_MESSAGE = 1000  # characters: a status travels in a header, and clients drop calls with headers above 8 KiB

# The first that fits, so a subclass may stand before its base.
_CODES: tuple[tuple[type[GraphcacheError], grpc.StatusCode], ...] = (
    (BadInput, grpc.StatusCode.INVALID_ARGUMENT),
    (ConfigError, grpc.StatusCode.INVALID_ARGUMENT),
    (UnknownModel, grpc.StatusCode.NOT_FOUND),
    (Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (OutOfDeviceMemory, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DeadlinePassed, grpc.StatusCode.DEADLINE_EXCEEDED),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
    (CaptureRefused, grpc.StatusCode.FAILED_PRECONDITION),
    (NotYetProvable, grpc.StatusCode.FAILED_PRECONDITION),
    (Conflict, grpc.StatusCode.FAILED_PRECONDITION),
    (NotSupported, grpc.StatusCode.UNIMPLEMENTED),
    (ModelRaised, grpc.StatusCode.INTERNAL),
)

Context = grpc.aio.ServicerContext[Any, Any]
Servicer = TypeVar("Servicer")
Request = TypeVar("Request")
Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class Status:
    """How a request failed. `retry_after_ms` below 0 says that trying again is of no use."""

    code: grpc.StatusCode
    message: str
    retry_after_ms: int | None = None

    @property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        """Trailing metadata that tells a client's retries when to come back."""
        return () if self.retry_after_ms is None else ((PUSHBACK, str(self.retry_after_ms)),)


def status_of(error: Exception) -> Status:
    """The status of an exception. One that nobody raised on purpose is logged here and told to the client without its text."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return Status(code, str(error)[:MAX_MESSAGE], _retry_after_ms(error))
    log.error("unexpected error in a request", exc_info=error)
    return Status(grpc.StatusCode.INTERNAL, "internal error")


async def abort(context: Context, error: Exception) -> NoReturn:
    """End the call with the status of an exception."""
    status = status_of(error)
    await context.abort(status.code, status.message, status.trailers)


def answers_errors(
    method: Callable[[Servicer, Request, Context], Awaitable[Reply]],
) -> Callable[[Servicer, Request, Context], Coroutine[Any, Any, Reply]]:
    """Make a servicer's method end the call by the table above when it raises."""

    @functools.wraps(method)
    async def answered(servicer: Servicer, request: Request, context: Context) -> Reply:
        try:
            return await method(servicer, request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the last line: nothing may reach grpc, which would tell the client its text
            status = status_of(error)
            blame(status.code.name, error)
            await context.abort(status.code, status.message, status.trailers)

    return answered


def _retry_after_ms(error: Exception) -> int | None:
    if isinstance(error, OutOfDeviceMemory):
        return MEMORY_RETRY_MS
    if not isinstance(error, Overloaded) or error.retry_after_s is None:
        return None
    return math.ceil(error.retry_after_s * 1000) if error.retry_after_s >= 0 else -1
