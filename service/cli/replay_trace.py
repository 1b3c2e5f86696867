"""`graphcache replay-trace`: drive a running worker with a recorded trace."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from time import monotonic

import click
import uvloop

from service.cli import options, printing
from service.cli.traffic import trace, view
from service.cli.traffic.session import drive
from service.cli.traffic.tally import ModelTally, overall_hit_ratio


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--model", "models", multiple=True, required=True, help="A model to drive; repeat it for several.")
@click.option("--speed", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True, help="Times the trace's own pace.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Stop after this time; the trace's end by default.")
@click.option(
    "--step-every",
    type=options.DURATION,
    default=0.0,
    metavar="DURATION",
    help="Begin decoding steps so far apart; back to back by default.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random values.")
@options.address
@options.as_json
def replay_trace(
    file: Path, models: tuple[str, ...], speed: float, seconds: float | None, step_every: float, seed: int, address: str, as_json: bool
) -> int:
    """Send the arrivals of FILE (CSV, gzipped or not: arrival_s,prompt_tokens,output_tokens) to each MODEL.

    A model with an axis besides the batch gets one request per arrival, that axis sized by the prompt. One without gets a batch sized by
    the output tokens. One with slots is stepped as a language model is: all live sequences in every request. Ctrl-C ends early, with the
    summary. Exit code 1 where a request failed; those that an overloaded worker refused are counted as shed.
    """
    console = printing.console(stderr=as_json)
    started = monotonic()

    async def drive_until_done() -> list[ModelTally]:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
        return await drive(address, models, trace.read(file), stop, console, speed=speed, seconds=seconds, step_s=step_every, seed=seed)

    tallies = uvloop.run(drive_until_done())
    if as_json:
        summaries = {tally.model: tally.summary() for tally in tallies}
        run = {"trace": str(file), "speed": speed, "seconds": monotonic() - started, "hit_ratio": overall_hit_ratio(tallies)}
        printing.print_json({**run, "models": summaries})
    else:
        view.summary(console, tallies, monotonic() - started)
    return 1 if any(tally.errors for tally in tallies) else 0
