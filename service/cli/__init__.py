"""The command line: `graphcache`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click

from service.errors import ConfigError, DeviceLost, GraphcacheError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DEVICE_LOST = 77
EXIT_INTERRUPTED = 130

# Command: its module in service.cli, and one line of help
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("serve", "Run the worker."),
    "demo": ("demo", "Start a worker with demo models and drive a recorded trace at it."),
    "infer": ("infer", "Send one request and say how it was served."),
    "replay-trace": ("replay_trace", "Drive a running worker with a recorded trace."),
    "graphs": ("graphs", "List the graph cache."),
    "explain": ("graphs", "Say what would happen to a request now, and why; or what was decided of a recent one."),
    "warm": ("graphs", "Capture one bucket."),
    "evict": ("graphs", "Drop the graph of one bucket, or all of a model."),
    "pin": ("graphs", "Keep the graph of a bucket whatever the pressure."),
    "unpin": ("graphs", "Let the graph of a bucket be evicted again."),
    "mode": ("graphs", "Switch graphs for a model or a variant."),
    "budget": ("graphs", "Resize the graph cache."),
    "top": ("top", "Watch a worker: rates, paths, reasons, queue, cache, memory."),
    "plan": ("plan", "Say which buckets would be best for a model's traffic."),
    "profile": ("profile", "Look into the profile store, fill it, export and import it."),
    "simulate": ("simulate", "Run the cache policy against recorded traffic, offline."),
    "doctor": ("doctor", "Say what keeps a model from being captured, or a graph from being faster."),
    "config": ("local", "Validate configuration files."),
    "version": ("local", "Print versions."),
}


class Commands(click.Group):
    """Imports a command's module only when it is asked for: help comes at once, and only `serve` and `doctor` load torch."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """Names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        """The command, imported now."""
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"service.cli.{COMMANDS[name][0]}")
        command = getattr(module, name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def cli() -> None:
    """Record model steps as CUDA graphs, keep them in a byte budget, and replay them over gRPC."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. An error is one line on stderr; a configuration with several has one for each."""
    try:
        result = cli.main(args=arguments, prog_name="graphcache", standalone_mode=False)
    except (click.ClickException, GraphcacheError) as error:
        return _report(error)
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `graphcache graphs | head`
        sys.stderr.close()
        return EXIT_FAILED
    return result if isinstance(result, int) else 0


def _report(error: click.ClickException | GraphcacheError) -> int:
    match error:
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.format_message())
            return EXIT_USAGE
        case click.ClickException():
            message, code = " ".join(error.format_message().split()), error.exit_code
        case ConfigError():
            message, code = str(error), EXIT_USAGE
        case DeviceLost():
            message, code = str(error), EXIT_DEVICE_LOST
        case _:
            message, code = str(error), EXIT_FAILED
    for line in message.splitlines():
        click.echo(f"graphcache: {line}", err=True)
    return code
