"""`graphcache demo` (`make run`): a worker with demo models, recorded traffic, and what to try next."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from time import monotonic

import click
import grpc
import uvloop
from rich.console import Console

from service.cli import options, printing
from service.cli.client import CHANNEL_OPTIONS, failure
from service.cli.traffic import trace, view
from service.cli.traffic.session import drive
from service.pb.inference.grpc_service_pb2 import ServerReadyRequest
from service.pb.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub

MODELS = ("encoder", "decode", "mlp", "chain32")
TRAFFIC_S = 60.0
STEP_S = 0.05  # a decoding step 20 times a second, as fast as people read: a loop without rests would leave no lane for the other models
PREWARM = "[{model: decode, shape: {batch: 64}}, {model: decode, shape: {batch: 32}}]"  # the others are captured under way, to be seen
LISTENING = "listening "
POLL_S = 0.1

TRY_NEXT = """
The worker stays up until Ctrl-C. In another terminal:
  {command} infer encoder --random batch=3 seq=17
  {command} explain encoder batch=3 seq=17
  {command} graphs
  {command} mode encoder none --for 1m
  {command} replay-trace {trace} --model decode --speed 4 --seconds 30
"""


@click.command()
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="End by itself after so many seconds of traffic.")
@click.option("--speed", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True, help="Times the trace's own pace.")
@options.sets
def demo(seconds: float | None, speed: float, sets: tuple[str, ...]) -> int:
    """Start a worker with the demo models, drive a minute of a public trace at it, and leave it up until Ctrl-C."""
    return uvloop.run(_demo(seconds, speed, sets))


async def _demo(seconds: float | None, speed: float, sets: tuple[str, ...]) -> int:
    console = printing.console()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    console.print("starting a worker with the demo models …")
    overrides = (f"cache.prewarm.list={PREWARM}", *sets)
    command = [sys.executable, "-m", "service", "serve", "--demo", *(part for one in overrides for part in ("--set", one))]
    # A session of its own: Ctrl-C reaches the worker once, from here, after the traffic has stopped.
    worker = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, start_new_session=True)
    assert worker.stdout is not None
    assert worker.stderr is not None
    log = asyncio.create_task(_relay(worker.stderr, console))
    ended = asyncio.create_task(_until_ended(worker, stop))
    try:
        line = await _first_line(worker.stdout, stop)
        if line:
            console.print(line)
            addresses = dict(part.split("=", 1) for part in line.removeprefix(LISTENING).split())
            out = asyncio.create_task(_relay(worker.stdout, console))
            await _ready(addresses["inference"], stop, console)
            await _traffic(addresses["inference"], stop, console, speed, seconds)
            if seconds is None and not stop.is_set():
                console.print(_try_next())
                await stop.wait()
            out.cancel()
    finally:
        if worker.returncode is None:
            worker.terminate()
        code = await ended
        await log
    if code:
        console.print(f"the worker ended with exit code {code}")
    return code if code >= 0 else 1


async def _ready(address: str, stop: asyncio.Event, console: Console) -> None:
    """Wait until the worker has prewarmed, or until `stop`."""
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        worker = GRPCInferenceServiceStub(channel)
        with console.status("the worker captures its first graphs …"):
            try:
                while not (stop.is_set() or (await worker.ServerReady(ServerReadyRequest())).ready):
                    with suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), POLL_S)
            except grpc.aio.AioRpcError as error:
                if not stop.is_set():
                    raise failure(address, error) from None


async def _traffic(address: str, stop: asyncio.Event, console: Console, speed: float, seconds: float | None) -> None:
    started = monotonic()
    tallies = await drive(
        address, MODELS, trace.read(trace.bundled()), stop, console, speed=speed, seconds=seconds or TRAFFIC_S, step_s=STEP_S
    )
    view.summary(console, tallies, monotonic() - started)


async def _first_line(output: asyncio.StreamReader, stop: asyncio.Event) -> str:
    """The worker's announcement, or "" where it ended or was told to stop before."""
    reading = asyncio.create_task(output.readline())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not reading.done():
        reading.cancel()
        return ""
    return (await reading).decode().strip()


async def _relay(output: asyncio.StreamReader, console: Console) -> None:
    """Show the worker's lines above the live table."""
    while line := await output.readline():
        console.print(line.decode(errors="replace").rstrip(), markup=False)


async def _until_ended(worker: Process, stop: asyncio.Event) -> int:
    code = await worker.wait()
    stop.set()
    return code


def _try_next() -> str:
    """Commands as they can be called from where the reader is."""
    command = os.path.relpath(sys.argv[0]) if os.sep in sys.argv[0] else sys.argv[0]
    return TRY_NEXT.format(command=command, trace=os.path.relpath(trace.bundled()))
