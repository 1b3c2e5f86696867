"""`graphcache serve`: the one command that becomes the worker."""

from __future__ import annotations

from pathlib import Path

import click

from service import config
from service.cli import options
from service.serving import serve as run


@click.command()
@click.option("-c", "--config", "file", type=click.Path(path_type=Path), metavar="FILE", help="The configuration (YAML).")
@options.sets
@click.option("--demo", is_flag=True, help="Serve the bundled demo models; needs no file.")
def serve(file: Path | None, sets: tuple[str, ...], demo: bool) -> int:
    """Run the worker until SIGTERM or Ctrl-C. Prints one line when it listens.

    Exit codes: 0 stopped, 2 wrong configuration or an address in use, 77 device lost.
    """
    return run(config.load(file, sets, demo=demo))
