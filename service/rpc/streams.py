"""Bidirectional streams with many requests in flight: answers go out as they get ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import TypeVar

from service.errors import Unavailable
from service.rpc.status import Context, abort
from service.rpc.tracing import Metadata, traced
from service.telemetry.tracing import Tracer

Request = TypeVar("Request")
Reply = TypeVar("Reply")

IN_FLIGHT = 256  # requests per stream; beyond it nothing more is read, and the transport's flow control holds the client back


class Streams:
    """The open streams of a server, so that a stop can end them: a client may hold an idle stream open forever."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self.tracer = tracer
        self._reading: set[asyncio.Timeout] = set()
        self._closing = False

    def close(self) -> None:
        """Read no more requests: each stream answers what is in flight and then ends with UNAVAILABLE."""
        self._closing = True
        for reading in self._reading:
            reading.reschedule(0)

    async def serve(
        self, method: str, requests: AsyncIterable[Request], answer: Callable[[Request], Awaitable[Reply]], context: Context
    ) -> None:
        """Answer every request of a stream in a task of its own, with a trace of its own; `answer` must not raise."""
        metadata: Metadata = context.invocation_metadata() or ()
        in_flight = asyncio.Semaphore(IN_FLIGHT)
        writing = asyncio.Lock()  # a stream takes one message at a time

        async def one(request: Request) -> None:
            try:
                with traced(self.tracer, method, metadata, context):
                    reply = await answer(request)
                async with writing:
                    await context.write(reply)
            finally:
                in_flight.release()

        async with asyncio.TaskGroup() as tasks:  # a cancelled stream cancels its requests
            try:
                async with asyncio.timeout(0 if self._closing else None) as reading:
                    self._reading.add(reading)
                    async for request in requests:
                        await in_flight.acquire()
                        tasks.create_task(one(request))
            except TimeoutError:
                pass
            finally:
                self._reading.discard(reading)
        if self._closing:
            await abort(context, Unavailable("the server is stopping"))
