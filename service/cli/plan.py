"""`graphcache plan`: the best buckets for a model's traffic, beside the lists that are usual."""

from __future__ import annotations

from pathlib import Path

import click

from service.cli import options, printing, words
from service.cli.client import CALL_TIMEOUT_S, admin_service, wire_parameters
from service.pb.graphcache.v1.admin_pb2 import PlanRequest, PlanResponse


@click.command()
@click.argument("model")
@click.option("--budget", type=options.SIZE, metavar="SIZE", help="Plan for so many bytes, e.g. 256MiB; the cache's budget by default.")
@click.option("--graphs", type=click.IntRange(min=1), help="At most so many graphs.")
@click.option(
    "--session-bytes", type=options.SIZE, metavar="SIZE", help="Bytes of a KV cache per session: how many sessions the plan displaces."
)
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png", help="Draw traffic, buckets and what each graph adds."
)
@options.parameters
@options.model_version
@options.admin_address
@options.as_json
def plan(
    model: str,
    budget: int | None,
    graphs: int | None,
    session_bytes: int | None,
    plot: Path | None,
    parameters: dict[str, str],
    model_version: str,
    admin_address: str,
    as_json: bool,
) -> None:
    """Say which buckets would be best for the traffic that MODEL has had, and in which order to capture them."""
    request = PlanRequest(
        model=model,
        version=model_version,
        parameters=wire_parameters(parameters),
        budget_bytes=None if budget is None else int(budget),
        graphs=graphs or 0,
        session_bytes=int(session_bytes or 0),
    )
    with admin_service(admin_address) as admin:
        found = admin.Plan(request, timeout=CALL_TIMEOUT_S)
    if plot is not None:
        from service.cli.plots import draw_plan  # noqa: PLC0415 - takes a second to import

        draw_plan(words.plan(found), plot)
    if as_json:
        printing.print_json(words.plan(found))
    else:
        _print(found)


def _print(found: PlanResponse) -> None:
    told = words.plan(found)
    click.echo(f"{found.model}:{found.version}: {found.runs} runs in {found.seconds:.0f} s")
    for axis, sizes in told["ladder"].items():
        click.echo(f"  {axis}: {{buckets: {sizes}}}")
    columns = ("", "bucket", ">runs/s", ">adds", ">bytes", ">capture")
    rows = [
        (
            number,
            printing.sizes(graph["bucket"]),
            f"{graph['runs_per_s']:.3g}",
            f"{graph['adds_ms_per_s']:.3g} ms/s",
            printing.size(graph["bytes"]),
            printing.milliseconds(graph["capture_ms"] / 1e3),
        )
        for number, graph in enumerate(told["graphs"], 1)
    ]
    console = printing.console()
    console.print(printing.table(columns, rows, title="in the order of prewarming"))
    compared = ("", ">graphs", ">saves", ">padding", ">bytes")
    others = [
        (
            other["name"],
            other["graphs"],
            f"{other['saved_ms_per_s']:.3g} ms/s",
            printing.percent(other["padding_ratio"]),
            printing.size(other["bytes"]),
        )
        for other in told["alternatives"]
    ]
    console.print(printing.table(compared, others, title="compared, within the same budget"))
    click.echo(f"one more MiB would save {told['marginal_ms_per_s_per_mib']:.3g} ms/s")
    if told["sessions_displaced"] is not None:
        click.echo(f"these bytes would hold {told['sessions_displaced']:.1f} sessions")
