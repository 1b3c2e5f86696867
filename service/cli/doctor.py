"""`graphcache doctor`: why a model can't be captured, or why its graph is not faster. Loads the model in this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from service import config as configuration
from service.cli import options, printing
from service.doctor.consulting import Case, consult
from service.doctor.words import report

FILE = "file:"
SEGMENTS = 8  # shown
NAME_WIDTH = 60  # of a kernel


@click.command()
@click.argument("model")
@options.sizes
@click.option("-c", "--config", "file", type=click.Path(path_type=Path), metavar="FILE", help="The configuration that names the model.")
@options.sets
@click.option("--demo", is_flag=True, help="One of the bundled demo models.")
@click.option("--device", help="auto, cpu or cuda:N; the configuration's by default.")
@options.variants
@options.model_version
@click.option("--profit", "with_profit", is_flag=True, help="Say also whether a graph pays, and if not, why.")
@click.option("--steps", default=1000, show_default=True, metavar="N", type=click.IntRange(1), help="Requests that a graph would serve.")
@options.as_json
def doctor(
    model: str,
    sizes: dict[str, int],
    file: Path | None,
    sets: tuple[str, ...],
    demo: bool,
    device: str | None,
    variants: dict[str, str],
    model_version: str,
    with_profit: bool,
    steps: int,
    as_json: bool,
) -> int:
    """Run MODEL's step under watch and list every operation that keeps it out of a graph; no server is needed.

    MODEL is a name of the configuration, or file:PATH.py with make_model() and example_inputs(batch, seed). An axis that is not named
    takes its smallest bucket of at least three. Exit codes: 0 capturable, 1 not, 2 wrong usage.
    """
    if model.startswith(FILE):
        if file is not None or demo or sets:
            raise click.UsageError("file:PATH.py needs no configuration")
        case = Case.of_file(model, device or "auto")
    else:
        override = (f"worker.device={device}",) if device else ()
        case = Case.of(configuration.load(file, (*sets, *override), demo=demo), model, model_version)
    found = report(consult(case, sizes, variants, with_profit=with_profit, steps=steps))
    if as_json:
        printing.print_json(found)
    else:
        Page(printing.console()).show(found)
    return 0 if found["capturable"] else 1


@dataclass(frozen=True, slots=True)
class Page:
    """Prints a report for people."""

    console: Console

    def show(self, found: dict[str, Any]) -> None:
        """The whole report."""
        blockers, place = found["blockers"], f"{found['model']} {printing.sizes(found['sizes'])} on {found['device']}"
        verdict = "capturable" if found["capturable"] else f"not capturable: {_count(len(blockers), 'blocker')}"
        self._line(f"{place}: {verdict}, {_count(found['operations'], 'operation')}", "bold")
        for number, blocker in enumerate(blockers, 1):
            self._blocker(number, blocker, found["operations"])
        if found["segments"]:
            self._segments(found["segments"])
        for note in found["serves"]["notes"] if found["serves"] else ():
            self._line(f"\n{note['problem']}", "bold yellow")
            self._line(f"   {note['hint']}", "green")
        if found["note"]:
            self._line(f"\nnot proven: {found['note']}")
        if found["profit"]:
            self._profit(found["profit"])

    def _blocker(self, number: int, blocker: dict[str, Any], total: int) -> None:
        where = f" in {blocker['module']}" if blocker["module"] else ""
        what = " ".join(filter(None, [blocker["operation"], blocker["what"]]))
        self._line(f"\n{number}. {blocker['reason']}: {what}{where}", "bold red")
        if blocker["line"] is not None:
            self._line(f"   {blocker['file']}:{blocker['line']}, in {blocker['function']}")
            self._line(f"       {blocker['source']}", "cyan")
        times = f", met {blocker['times']} times" if blocker["times"] > 1 else ""
        share = f"{blocker['keeps_out']} of {_count(total, 'operation')} ({printing.percent(blocker['share'])})"
        if blocker["operation"]:
            self._line(f"   keeps {share} out of a graph that begins with the step{times}")
        else:
            self._line("   rules out every graph of this step, whatever its operations are")
        if blocker["movable"] is not None:
            verdict = (
                "can be moved to the device" if blocker["movable"] else f"can't be moved to the device: {blocker['not_movable_because']}"
            )
            self._line(f"   {printing.size(blocker['bytes'])} of host memory {verdict}")
        self._line(f"   {blocker['hint']}", "green")

    def _segments(self, segments: list[dict[str, Any]]) -> None:
        self._line("\nThe largest segments beside them, each recorded by itself (the worker records whole steps)")
        rows = [
            (part["operations"], printing.percent(part["share"]), _outcome(part), part["from"], part["to"], _modules(part["modules"]))
            for part in segments[:SEGMENTS]
        ]
        self.console.print(printing.table((">operations", ">share", "", "from", "to", "modules"), rows))
        if len(segments) > SEGMENTS:
            self._line(f"and {len(segments) - SEGMENTS} smaller ones")
        for part in segments[:SEGMENTS]:
            if part["problem"]:
                self._line(f"from {part['from']}: {part['problem']}")

    def _profit(self, profit: dict[str, Any]) -> None:
        time, share = printing.milliseconds, printing.percent
        self._line(f"\n{profit['cause']}: {profit['explanation']}", "bold")
        measured = f", measured {time(profit['measured_s'])} ({profit['measured_gain']:.2f}×)" if profit["measured_s"] else ""
        predicted = f"{time(profit['predicted_s'])} ({profit['predicted_gain']:.2f}×)"
        self._line(f"   eager {time(profit['eager_s'])}; replay predicted {predicted}{measured}")
        parts = ", ".join(f"{name} {time(seconds)}" for name, seconds in profit["parts_s"].items())
        self._line(f"   a replay: {parts}; copies {share(profit['copies'])}, padding {share(profit['padding'])}")
        self._line(
            f"   the step: {time(profit['step_s'])}, of which the host needs {time(profit['submit_s'])} to submit "
            f"{profit['kernels']:.0f} kernels of {time(profit['kernel_s'])} in all; the device idles {share(profit['idle'])}"
        )
        for kernel in profit["longest"]:
            self._line(f"       {kernel['count']:6.0f} × {time(kernel['seconds'] / kernel['count']):>8}  {kernel['name'][:NAME_WIDTH]}")
        if profit["capture_s"] is not None:
            after = f"{profit['break_even_steps']:.0f}" if profit["break_even_steps"] else "no number of"
            self._line(f"   capture and proof {time(profit['capture_s'])}, paid for after {after} requests; {profit['steps']} are expected")

    def _line(self, text: str, style: str = "") -> None:
        self.console.print(Text(text, style=style), soft_wrap=True)


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _outcome(part: dict[str, Any]) -> str:
    return {True: "captured", False: "can't be captured", None: "not tried"}[part["captured"]]


def _modules(paths: list[str]) -> str:
    return " … ".join(dict.fromkeys((paths[0], paths[-1]))) if paths else ""
