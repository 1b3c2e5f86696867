"""`graphcache serve`: the one command that becomes the worker."""

from __future__ import annotations

from pathlib import Path

import click
from rich import progress as bar

from service import config
from service.cli import options, printing
from service.prewarm import Progress
from service.serving import serve as run

COLUMNS = (
    bar.TextColumn("capturing before traffic"),
    bar.BarColumn(),
    bar.MofNCompleteColumn(),
    bar.TextColumn("{task.fields[refused]} refused"),
    bar.TimeElapsedColumn(),
)


@click.command()
@click.option("-c", "--config", "file", type=click.Path(path_type=Path), metavar="FILE", help="The configuration (YAML).")
@options.sets
@click.option("--demo", is_flag=True, help="Serve the bundled demo models; needs no file.")
def serve(file: Path | None, sets: tuple[str, ...], demo: bool) -> int:
    """Run the worker until SIGTERM or Ctrl-C. Prints one line when it listens.

    Exit codes: 0 stopped, 2 wrong configuration or an address in use, 77 device lost.
    """
    loaded = config.load(file, sets, demo=demo)
    console = printing.console(stderr=True)
    if not console.is_terminal:
        return run(loaded)
    with bar.Progress(*COLUMNS, console=console, transient=True) as shown:
        task = shown.add_task("prewarm", total=None, visible=False, refused=0)

        def watch(progress: Progress) -> None:
            done = progress.captured + progress.refused
            shown.update(task, completed=done, total=progress.planned, refused=progress.refused, visible=done < progress.planned)
            if progress.over:
                shown.stop()

        return run(loaded, watch=watch)
