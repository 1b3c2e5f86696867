"""How a request is shown: what was decided of it, and what can be done about that."""

from __future__ import annotations

from datetime import datetime

import click

from service.cli import printing, words
from service.cli.client import CALL_TIMEOUT_S, CallFailed, admin_service
from service.pb.graphcache.v1.admin_pb2 import FindDecisionsRequest


def explain_request(name: str, admin_address: str, *, as_json: bool) -> None:
    """Print what was decided of the requests with this id or trace id. Raises CallFailed where none is kept."""
    with admin_service(admin_address) as admin:
        found = admin.FindDecisions(FindDecisionsRequest(id=name), timeout=CALL_TIMEOUT_S)
    if not found.decisions:
        raise CallFailed(f"no decision on request {name!r} is kept; of late {found.kept} are")
    told = [words.decision(one) for one in found.decisions]
    if as_json:
        printing.print_json(told)
        return
    for one in told:
        _print(one)


def _print(told: words.Words) -> None:
    when = datetime.fromtimestamp(told["at"]).astimezone()
    answered = told["outcome"] in ("replay", "eager")
    name = f"{told['model']}:{told['version']}" if told["version"] else told["model"]
    shape = f" {printing.sizes(told['shape'])}" if told["shape"] else ""
    click.echo(f"{when:%H:%M:%S} {name}{shape}: {'served by ' if answered else ''}{told['outcome']}")
    padding = f", padding {printing.percent(told['padding_ratio'])}" if told["outcome"] == "replay" else ""
    for label, value in (
        ("reason", told["reason"]),
        ("detail", told["detail"]),
        ("hint", told["hint"]),
        ("bucket", told["bucket"] and printing.sizes(told["bucket"]) + padding),
        ("variant", told["variant"]),
        ("batch", answered and f"{told['batch_rows']} rows, parts {told['parts']}"),
        ("waited", answered and printing.milliseconds(told["queue_ms"] / 1e3)),
        ("executed", answered and printing.milliseconds(told["execute_ms"] / 1e3)),
        ("in all", printing.milliseconds(told["total_ms"] / 1e3)),
        ("trace", told["trace_id"]),
    ):
        if value:
            click.echo(f"  {label}: {value}")
