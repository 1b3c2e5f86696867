"""Sending a trace's arrivals to a worker: one request for each, or the steps of a decoding loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from time import perf_counter as now  # the loop's own clock may tick in whole milliseconds
from typing import TYPE_CHECKING, Protocol

import grpc
import numpy as np

from service.cli import requests
from service.cli.client import CALL_TIMEOUT_S
from service.cli.traffic.sizing import sizing
from service.cli.traffic.tally import ModelTally
from service.cli.traffic.trace import Arrival
from service.errors import ConfigError
from service.pb.graphcache.v1.replay_pb2 import DescribeModelResponse, ReplayRequest, TensorDescription
from service.tensors import Datatype

if TYPE_CHECKING:
    from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceAsyncStub  # exists in the stub file only

IN_FLIGHT = 256
PAUSE_AFTER_ERROR_S = 0.1  # a decoding loop has nothing else to slow it down


class Driver(Protocol):
    """Drives one model, and counts what happens in its tally."""

    tally: ModelTally

    async def run(self, arrivals: Sequence[Arrival], end_s: float) -> None:
        """Send them at their times, in seconds from now, and nothing after `end_s`."""
        ...


def driver_for(
    model: DescribeModelResponse, trace: Sequence[Arrival], worker: ReplayServiceAsyncStub, *, step_s: float, seed: int
) -> Driver:
    """A decoding loop for a model with slots, one request per arrival for any other."""
    rng = np.random.default_rng(seed)
    return DecodingLoop(model, worker, rng, step_s) if model.state else OpenLoop(model, trace, worker, rng)


class OpenLoop:
    """Sends each arrival when it is due, whether or not the ones before were answered; more than IN_FLIGHT at once have to wait.

    Latency counts from when an arrival was due, so that waiting here is not hidden.
    """

    def __init__(
        self, model: DescribeModelResponse, trace: Sequence[Arrival], worker: ReplayServiceAsyncStub, rng: np.random.Generator
    ) -> None:
        self._model = model
        self._worker = worker
        self._rng = rng
        self._sizes, load = sizing({axis.name: axis.max for axis in model.axes}, model.batch_axis, trace)
        self._places = asyncio.Semaphore(IN_FLIGHT)
        self.tally = ModelTally(model.model, load)

    async def run(self, arrivals: Sequence[Arrival], end_s: float) -> None:
        """Returns when all that was sent is answered."""
        start = now()
        async with asyncio.TaskGroup() as calls:
            for arrival in takewhile(lambda arrival: arrival.at_s < end_s, arrivals):
                due = start + arrival.at_s
                await asyncio.sleep(due - now())
                self.tally.delayed += self._places.locked()
                await self._places.acquire()
                calls.create_task(self._call(self._sizes(arrival), due))

    async def _call(self, sizes: dict[str, int], due: float) -> None:
        try:
            inputs = requests.random_inputs(self._model, sizes, self._rng)
            request = ReplayRequest(model=self._model.model, version=self._model.version, inputs=requests.to_wire(inputs))
            reply = await self._worker.Replay(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self.tally.failed(error)
        else:
            rows = sizes.get(self._model.batch_axis, 1)
            self.tally.served(reply.outcome, rows, now() - due)
        finally:
            self._places.release()


@dataclass(slots=True, eq=False)
class _Sequence:
    slot: int
    token: int
    left: int  # tokens still to be made
    position: int = 0


class DecodingLoop:
    """Continuous batching as a language model server does it: every step is one request with all live sequences.

    An arrival takes a free slot and starts at position 0 (there is no prefill); it leaves after its output tokens or at the context's
    end. Steps begin `step_s` seconds apart, or one after the other where they take longer. Latency is one step's.
    """

    def __init__(self, model: DescribeModelResponse, worker: ReplayServiceAsyncStub, rng: np.random.Generator, step_s: float) -> None:
        self._model = model
        self._worker = worker
        self._rng = rng
        self._step_s = step_s
        self._slots = model.state[0].index_input
        inputs = {tensor.name: tensor for tensor in model.inputs}
        if set(inputs) != {self._slots, "tokens", "positions"} or not inputs["positions"].HasField("range"):
            raise ConfigError(f"{model.model}: a model with slots is driven by tokens, positions (with a range) and {self._slots}")
        self._datatypes = {name: Datatype(tensor.datatype) for name, tensor in inputs.items()}
        self._tokens = inputs["tokens"].range.high + 1 if inputs["tokens"].HasField("range") else 1
        self._context = inputs["positions"].range.high + 1
        self._next = _next_token_output(model)
        self._largest = min(axis.max for axis in model.axes)
        self._free = list(range(min(state.slots for state in model.state)))
        self._live: deque[_Sequence] = deque()
        load = f"every step all live sequences, one per arrival, for its output tokens or {self._context} positions"
        self.tally = ModelTally(model.model, load)

    async def run(self, arrivals: Sequence[Arrival], end_s: float) -> None:
        """Steps until every sequence has ended; those that live at `end_s` are left."""
        start = now()
        ahead = deque(arrivals)
        waiting: deque[Arrival] = deque()
        while (ahead or waiting or self._live) and now() < start + end_s:
            while ahead and start + ahead[0].at_s <= now():
                self.tally.delayed += not self._free
                waiting.append(ahead.popleft())
                self._admit(waiting)
            self._admit(waiting)
            if self._live:
                began = now()
                await self._step()
                await asyncio.sleep(began + self._step_s - now())
            elif ahead:
                await asyncio.sleep(start + min(ahead[0].at_s, end_s) - now())

    def _admit(self, waiting: deque[Arrival]) -> None:
        while waiting and self._free:
            left = max(1, waiting.popleft().output_tokens)
            self._live.append(_Sequence(self._free.pop(), int(self._rng.integers(self._tokens)), left))

    async def _step(self) -> None:
        rows = [self._live.popleft() for _ in range(min(self._largest, len(self._live)))]
        values = {
            "tokens": [row.token for row in rows],
            "positions": [row.position for row in rows],
            self._slots: [row.slot for row in rows],
        }
        inputs = {name: requests.from_array(self._datatypes[name], np.array(column)) for name, column in values.items()}
        request = ReplayRequest(
            model=self._model.model, version=self._model.version, inputs=requests.to_wire(inputs), outputs=[self._next.name]
        )
        started = now()
        try:
            reply = await self._worker.Replay(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self.tally.failed(error)
            self._live.extendleft(reversed(rows))  # the step is tried again
            await asyncio.sleep(PAUSE_AFTER_ERROR_S)
            return
        self.tally.served(reply.outcome, len(rows), now() - started)
        answer = requests.to_array(requests.from_wire(reply.outputs)[self._next.name])
        tokens = answer if answer.ndim == 1 else answer.argmax(axis=-1)
        for row, token in zip(rows, tokens.tolist(), strict=True):
            row.token, row.position, row.left = token, row.position + 1, row.left - 1
            if row.left and row.position < self._context:
                self._live.append(row)
            else:
                self._free.append(row.slot)


def _next_token_output(model: DescribeModelResponse) -> TensorDescription:
    """The output that names the next token, or else the logits."""
    tokens = [output for output in model.outputs if len(output.shape) == 1 and not Datatype(output.datatype).is_float]
    logits = [output for output in model.outputs if len(output.shape) == 2 and Datatype(output.datatype).is_float]
    for output in tokens + logits:
        return output
    raise ConfigError(f"{model.model}: no output names the next token: neither integers [batch] nor floats [batch, vocabulary]")
