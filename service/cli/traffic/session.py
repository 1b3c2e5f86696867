"""One run of recorded traffic against a worker, shown while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

import grpc
from rich.console import Console

from service.cli.client import CALL_TIMEOUT_S, CHANNEL_OPTIONS, failure
from service.cli.traffic.drivers import driver_for
from service.cli.traffic.tally import ModelTally
from service.cli.traffic.trace import Arrival
from service.cli.traffic.view import REFRESHES_PER_S, View
from service.pb.graphcache.v1.replay_pb2 import DescribeModelRequest
from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceStub

if TYPE_CHECKING:
    from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceAsyncStub  # exists in the stub file only


async def drive(
    address: str,
    models: Sequence[str],
    trace: Sequence[Arrival],
    stop: asyncio.Event,
    console: Console,
    *,
    speed: float = 1.0,
    seconds: float | None = None,
    step_s: float = 0.0,
    seed: int = 0,
) -> list[ModelTally]:
    """Send the trace to each of the models until it ends, `seconds` are over or `stop` is set.

    Raises CallFailed where the worker can't be reached or lacks a model, ConfigError where a model can't be driven.
    """
    arrivals = [replace(arrival, at_s=arrival.at_s / speed) for arrival in trace]
    total_s = arrivals[-1].at_s if seconds is None else seconds
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        worker: ReplayServiceAsyncStub = ReplayServiceStub(channel)
        try:
            described = [await worker.DescribeModel(DescribeModelRequest(model=name), timeout=CALL_TIMEOUT_S) for name in models]
        except grpc.aio.AioRpcError as error:
            raise failure(address, error) from None
        drivers = [driver_for(model, trace, worker, step_s=step_s, seed=seed) for model in described]
        tallies = [driver.tally for driver in drivers]
        end_s = float("inf") if seconds is None else seconds
        running = {asyncio.create_task(driver.run(arrivals, end_s)) for driver in drivers}
        stopping = asyncio.create_task(stop.wait())
        start = monotonic()
        try:
            with View(console, tallies, total_s) as view:
                while running and not stop.is_set():
                    done, _ = await asyncio.wait({*running, stopping}, timeout=1 / REFRESHES_PER_S, return_when=asyncio.FIRST_COMPLETED)
                    for task in done & running:
                        task.result()
                    running -= done
                    view.update(monotonic() - start)
        finally:
            for task in (*running, stopping):
                task.cancel()
            await asyncio.gather(*running, stopping, return_exceptions=True)
    return tallies
