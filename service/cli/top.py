"""`graphcache top`: a running worker, live."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from service.cli import options, printing, words
from service.cli.client import CALL_TIMEOUT_S, admin_service
from service.cli.words import Words
from service.pb.graphcache.v1.admin_pb2 import GetStatusRequest

_GRAPHS_SHOWN = 12  # lines of the cache, the most used first
_REASONS_SHOWN = 8
_BAR = 40


@click.command()
@click.option("--every", type=options.DURATION, default=1.0, show_default="1s", metavar="DURATION", help="Between two looks.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many looks.")
@options.admin_address
@options.as_json
def top(every: float, count: int | None, admin_address: str, as_json: bool) -> None:
    """Watch a worker until Ctrl-C: rates by path and reason, queue, cache map, memory.

    A terminal that can't move its cursor, or a pipe, gets one page after the other. `--json` prints one look and ends.
    """
    looks = _looks(admin_address, every, 1 if as_json else count)
    if as_json:
        printing.print_json(next(looks)[0])
        return
    console = printing.console()
    if console.is_terminal and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            for now, before in looks:
                live.update(page(now, before), refresh=True)
        return
    for now, before in looks:
        console.print(page(now, before))


def _looks(admin_address: str, every: float, count: int | None) -> Iterator[tuple[Words, Words | None]]:
    """The worker's status, and the one before it where there is one."""
    before: Words | None = None
    with admin_service(admin_address) as admin:
        while count is None or count > 0:
            now = words.status(admin.GetStatus(GetStatusRequest(), timeout=CALL_TIMEOUT_S))
            yield now, before
            before, count = now, None if count is None else count - 1
            if count != 0:
                time.sleep(every)


def page(now: Words, before: Words | None) -> Group:
    """Everything, top to bottom."""
    parts: list[Text | Table] = [_head(now), _memory(now), *_alarms(now), _models(now, before), _reasons(now), _graphs(now, before)]
    return Group(*(item for part in parts for item in (part, Text())))


def _head(now: Words) -> Text:
    backlog = ", ".join(f"{path} {printing.milliseconds(seconds)}" for path, seconds in sorted(now["backlog_s"].items()) if seconds)
    state = "serving" if now["ready"] else "not serving"
    text = f"{now['worker']} on {now['device']}, {state}, up {_duration(now['uptime_s'])}\n"
    text += f"device busy {printing.percent(now['busy_ratio'])}, waiting {now['waiting']}, running {now['running']}"
    text += f", saturation {printing.percent(now['saturation'])}"
    return Text(text + (f", backlog {backlog}" if backlog else ""))


def _memory(now: Words) -> Table:
    grid = Table.grid(padding=(0, 1))
    used, budget = now["used_bytes"], now["budget_bytes"]
    grid.add_row("graphs", _bar(used, budget), f"{printing.size(used)} of {printing.size(budget)}")
    if now["memory_total_bytes"]:
        used, total = now["memory_used_bytes"], now["memory_total_bytes"]
        grid.add_row("device", _bar(used, total), f"{printing.size(used)} of {printing.size(total)}")
    return grid


def _bar(used: float, total: float) -> ProgressBar:
    return ProgressBar(total=max(total, 1), completed=min(used, total), width=_BAR)


def _alarms(now: Words) -> list[Text]:
    told = [f"GRAPHS EFFECTIVELY OFF for {model['model']}: {model['alarm']}" for model in now["models"] if model["alarm"]]
    return [Text("\n".join(told), style="bold red")] if told else []


def _models(now: Words, before: Words | None) -> Table:
    columns = ("model", ">requests/s", ">replayed", ">replay", ">eager", ">failed", ">saved", ">lost", "mode")
    return printing.table(columns, [_model(model, now, before) for model in now["models"]])


def _model(model: Words, now: Words, before: Words | None) -> tuple[str, ...]:
    counts = dict(model["outcomes"])
    older = next((m for m in before["models"] if m["model"] == model["model"]), None) if before else None
    rate, share = "-", "-"
    if before and older:
        new = {outcome: count - older["outcomes"].get(outcome, 0) for outcome, count in counts.items()}
        rate = f"{sum(new.values()) / max(now['at'] - before['at'], 1e-3):.1f}"
        counts_of_now = new
    else:
        counts_of_now = counts
    executed = counts_of_now.get("replay", 0) + counts_of_now.get("eager", 0)
    if executed:
        share = printing.percent(counts_of_now.get("replay", 0) / executed)
    replayed, eager = counts.pop("replay", 0), counts.pop("eager", 0)
    lost = sum(reason["lost_s"] for reason in model["reasons"])
    modes = {f"{m['mode']} ({m['origin']})" if m["mode"] == "none" else m["mode"] for m in now["modes"] if m["model"] == model["model"]}
    saved = printing.milliseconds(model["saved_s"] - model["slower_s"])
    return (
        model["model"],
        rate,
        share,
        str(replayed),
        str(eager),
        str(sum(counts.values())),
        saved,
        printing.milliseconds(lost),
        ", ".join(sorted(modes)),
    )


def _reasons(now: Words) -> Table:
    """What to change first: the reasons that cost most."""
    found = [(reason, model["model"]) for model in now["models"] for reason in model["reasons"]]
    found.sort(key=lambda item: (-item[0]["lost_s"], -item[0]["requests"]))
    rows = [
        (name, reason["reason"], reason["requests"], printing.milliseconds(reason["lost_s"]), reason["hint"])
        for reason, name in found[:_REASONS_SHOWN]
    ]
    return printing.table(("model", "eager because", ">requests", ">lost", "what to do"), rows)


def _graphs(now: Words, before: Words | None) -> Table:
    """The cache map: the graphs that are replayed most, as long as there is room."""
    older = {graph["key"]: graph["hits"] for graph in before["graphs"]} if before else {}
    serving = [graph for graph in now["graphs"] if graph["state"] == "serving"]
    serving.sort(key=lambda graph: -graph["hits"])
    most = max((graph["hits"] for graph in serving), default=0)
    rows = [
        (
            f"{graph['model']}:{graph['version']}",
            graph["variant"],
            printing.sizes(graph["bucket"]),
            graph["hits"],
            f"+{graph['hits'] - older[graph['key']]}" if graph["key"] in older else "",
            "█" * round(12 * graph["hits"] / most) if most else "",
            printing.size(graph["bytes"]),
            printing.percent(graph["padding_ratio"]),
            "pinned" if graph["pinned"] else "",
        )
        for graph in serving[:_GRAPHS_SHOWN]
    ]
    states: dict[str, int] = {}
    for graph in now["graphs"]:
        states[graph["state"]] = states.get(graph["state"], 0) + 1
    title = "cache: " + (", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "empty")
    return printing.table(("graph", "variant", "bucket", ">hits", "", "", ">bytes", ">padding", ""), rows, title=title)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
