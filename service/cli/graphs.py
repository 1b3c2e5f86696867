"""Looking into a running worker's graph cache, and acting on it."""

from __future__ import annotations

from collections.abc import Iterable

import click

from service.cli import options, printing, words
from service.cli.client import CALL_TIMEOUT_S, admin_service, target_fields, wire_parameters
from service.cli.decisions import explain_request
from service.cli.options import Target
from service.pb.graphcache.v1.admin_pb2 import (
    EvictRequest,
    ExplainRequest,
    Graph,
    ListGraphsRequest,
    PinRequest,
    SetBudgetRequest,
    SetGraphModeRequest,
    WarmRequest,
)


@click.command()
@click.argument("model", default="")
@options.admin_address
@options.as_json
def graphs(model: str, admin_address: str, as_json: bool) -> None:
    """List the cache, or MODEL's part of it: bucket, state, hits, saved time, bytes, last use."""
    with admin_service(admin_address) as admin:
        found = admin.ListGraphs(ListGraphsRequest(model=model), timeout=CALL_TIMEOUT_S).graphs
    if as_json:
        printing.print_json([words.graph(one) for one in found])
    else:
        _print_graphs(found)


@click.command()
@click.argument("model", required=False)
@options.sizes
@click.option("--request", "request_id", metavar="ID", help="Say what was decided of a recent request, by its id or its trace's.")
@options.parameters
@options.model_version
@options.admin_address
@options.as_json
def explain(
    model: str | None,
    sizes: dict[str, int],
    request_id: str | None,
    parameters: dict[str, str],
    model_version: str,
    admin_address: str,
    as_json: bool,
) -> None:
    """Say what would happen to a request of this shape now, and why; or what was decided of a recent one (--request)."""
    if (model is None) == (request_id is None):
        raise click.UsageError("needs either MODEL AXIS=SIZE... or --request ID")
    if request_id is not None:
        explain_request(request_id, admin_address, as_json=as_json)
        return
    target = Target(model or "", model_version, sizes, parameters)
    with admin_service(admin_address) as admin:
        told = words.explanation(admin.Explain(ExplainRequest(**target_fields(target)), timeout=CALL_TIMEOUT_S))
    if as_json:
        printing.print_json(told)
        return
    click.echo(f"{told['model']}:{told['version']} would be served by {told['path']}")
    for label, value in (
        ("reason", told["reason"]),
        ("detail", told["detail"]),
        ("bucket", told["bucket"] and printing.sizes(told["bucket"])),
        ("padding", told["path"] == "replay" and printing.percent(told["padding_ratio"])),
        ("predicted", told["predicted_ms"] is not None and printing.milliseconds(told["predicted_ms"] / 1e3)),
        ("mode", f"{told['mode']['mode']}, by {told['mode']['origin']}"),
        ("hint", told["hint"]),
    ):
        if value:
            click.echo(f"  {label}: {value}")


@click.command()
@options.target
@click.option("--force", is_flag=True, help="Skip the test whether the graph pays; the proof that it is right is never skipped.")
@options.admin_address
@options.as_json
def warm(target: Target, force: bool, admin_address: str, as_json: bool) -> None:
    """Capture the bucket that covers a shape, and wait until its graph serves."""
    with admin_service(admin_address) as admin:
        graph = admin.Warm(WarmRequest(**target_fields(target), force=force)).graph  # a capture takes the time it takes
    _print_graph(graph, as_json)


@click.command()
@options.target
@options.admin_address
@options.as_json
def evict(target: Target, admin_address: str, as_json: bool) -> None:
    """Drop the graph of the bucket that covers a shape, all axes named, or all graphs of the variant where no size is given."""
    with admin_service(admin_address) as admin:
        count = admin.Evict(EvictRequest(**target_fields(target)), timeout=CALL_TIMEOUT_S).evicted
    if as_json:
        printing.print_json({"evicted": count})
    else:
        click.echo(f"evicted {count} graph{'s' if count != 1 else ''}")


@click.command()
@options.target
@options.admin_address
@options.as_json
def pin(target: Target, admin_address: str, as_json: bool) -> None:
    """Keep the graph of a bucket whatever the pressure."""
    _pin(target, admin_address, as_json, pinned=True)


@click.command()
@options.target
@options.admin_address
@options.as_json
def unpin(target: Target, admin_address: str, as_json: bool) -> None:
    """Let the graph of a bucket be evicted again."""
    _pin(target, admin_address, as_json, pinned=False)


def _pin(target: Target, admin_address: str, as_json: bool, *, pinned: bool) -> None:
    with admin_service(admin_address) as admin:
        graph = admin.Pin(PinRequest(**target_fields(target), pinned=pinned), timeout=CALL_TIMEOUT_S).graph
    _print_graph(graph, as_json)


@click.command("mode")
@click.argument("model")
@click.argument("wanted", metavar="none|full|auto")
@click.option("--for", "for_s", type=options.DURATION, metavar="DURATION", help="Return to the configured mode after this time, e.g. 10m.")
@options.parameters
@options.model_version
@options.admin_address
@options.as_json
def mode(
    model: str, wanted: str, for_s: float | None, parameters: dict[str, str], model_version: str, admin_address: str, as_json: bool
) -> None:
    """Switch graphs for a model, or for one of its variants (--param), from the next batch on."""
    request = SetGraphModeRequest(model=model, version=model_version, parameters=wire_parameters(parameters), mode=wanted, for_s=for_s)
    with admin_service(admin_address) as admin:
        state = words.mode(admin.SetGraphMode(request, timeout=CALL_TIMEOUT_S).mode)
    if as_json:
        printing.print_json({"model": model, "variant": parameters, **state})
    else:
        variant = "".join(f" {name}={value}" for name, value in parameters.items())
        click.echo(f"{model}{variant}: mode {state['mode']}{f' for {for_s:g} s' if for_s else ''}")


@click.command(context_settings={"ignore_unknown_options": True})  # so that -5 is a wrong size, not an unknown option
@click.argument("size", type=options.SIZE)
@options.admin_address
@options.as_json
def budget(size: int, admin_address: str, as_json: bool) -> None:
    """Resize the cache, e.g. to 512MiB; what no longer fits is evicted."""
    with admin_service(admin_address) as admin:
        reply = admin.SetBudget(SetBudgetRequest(bytes=size), timeout=CALL_TIMEOUT_S)
    if as_json:
        names = ("budget_bytes", "used_bytes", "freed_bytes", "reusable_bytes")
        printing.print_json({name: getattr(reply, name) for name in names})
    else:
        click.echo(f"budget {printing.size(reply.budget_bytes)}, used {printing.size(reply.used_bytes)}")
        click.echo(f"freed {printing.size(reply.freed_bytes)}; the driver keeps {printing.size(reply.reusable_bytes)} for later graphs")


def _print_graph(graph: Graph, as_json: bool) -> None:
    if as_json:
        printing.print_json(words.graph(graph))
    else:
        _print_graphs([graph])


def _print_graphs(found: Iterable[Graph]) -> None:
    columns = ("model", "variant", "bucket", "state", ">hits", ">saved", ">bytes", ">last used", "arena", "")
    printing.console().print(printing.table(columns, [_row(graph) for graph in found]))


def _row(graph: Graph) -> tuple[object, ...]:
    line = words.graph(graph)
    return (
        f"{line['model']}:{line['version']}",
        line["variant"],
        printing.sizes(line["bucket"]),
        line["state"],
        line["hits"],
        printing.milliseconds(line["saved_s"]),
        printing.size(line["bytes"]),
        "-" if line["last_used_s"] is None else f"{line['last_used_s']:.0f} s ago",
        line["arena"],
        "pinned" if line["pinned"] else line["reason"],
    )
