"""`graphcache infer`: send one request and say how it was served."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import click
import numpy as np

from service.cli import options, printing, requests, words
from service.cli.client import CALL_TIMEOUT_S, replay_service, wire_parameters
from service.cli.options import Target
from service.pb.graphcache.v1.replay_pb2 import DescribeModelRequest, ReplayRequest


@click.command()
@options.target
@click.option("--random", "use_random", is_flag=True, help="Send random values of the sizes given as AXIS=SIZE.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the random values.")
@click.option("--npz", type=click.Path(path_type=Path), help="Send arrays from a file, by the inputs' names.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the outputs to an .npz file.")
@click.option("--deadline", type=options.DURATION, metavar="DURATION", help="Give up after this time, e.g. 50ms.")
@click.option("--id", "request_id", default="", metavar="ID", help="The request's id, for `graphcache explain --request ID` afterwards.")
@options.address
@options.as_json
def infer(
    target: Target,
    use_random: bool,
    seed: int,
    npz: Path | None,
    out: Path | None,
    deadline: float | None,
    request_id: str,
    address: str,
    as_json: bool,
) -> None:
    """Send one request to MODEL and print its outputs' shapes, path, reason and timings."""
    if use_random == (npz is not None):
        raise click.UsageError("give either --random AXIS=SIZE… or --npz FILE")
    if target.shape and not use_random:
        raise click.UsageError("sizes go with --random")
    with replay_service(address) as worker:
        model = worker.DescribeModel(DescribeModelRequest(model=target.model, version=target.version), timeout=CALL_TIMEOUT_S)
        if npz is not None:
            inputs = requests.read_npz(npz, model)
        else:
            inputs = requests.random_inputs(model, requests.complete_sizes(model, target.shape), np.random.default_rng(seed))
        request = ReplayRequest(
            model=target.model,
            version=target.version,
            id=request_id,
            inputs=requests.to_wire(inputs),
            parameters=wire_parameters(target.parameters),
        )
        started = perf_counter()
        reply = worker.Replay(request, timeout=deadline)
        total_s = perf_counter() - started
    outputs = requests.from_wire(reply.outputs)
    if out is not None:
        requests.write_npz(out, outputs)
    result = {
        "model": reply.model,
        "version": reply.version,
        **words.outcome(reply.outcome, model),
        "total_ms": total_s * 1e3,
        "outputs": {name: {"datatype": str(tensor.datatype), "shape": list(tensor.shape)} for name, tensor in outputs.items()},
    }
    if as_json:
        printing.print_json(result)
    else:
        _print(result)


def _print(result: words.Words) -> None:
    why = f" ({result['reason']}{': ' + result['detail'] if result['detail'] else ''})" if result["reason"] else ""
    click.echo(f"{result['model']}:{result['version']} served by {result['path']}{why}")
    if result["bucket"]:
        padding = f", padding {printing.percent(result['padding_ratio'])}" if result["path"] == "replay" else ""
        click.echo(f"  bucket {printing.sizes(result['bucket'])}{padding}")
    click.echo(f"  rows in the batch {result['batch_rows']}, parts {result['parts']}")
    times = [printing.milliseconds(result[key] / 1e3) for key in ("queue_ms", "execute_ms", "total_ms")]
    click.echo(f"  waited {times[0]}, executed {times[1]}, round trip {times[2]}")
    for name, output in result["outputs"].items():
        click.echo(f"  {name}: {output['datatype']} {output['shape']}")
