"""What several commands take: addresses, `--json`, AXIS=SIZE, NAME=VALUE, durations and sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from math import isfinite
from typing import Any

import click

from service.units import parse_address, parse_duration, parse_size

Command = Callable[..., Any]

DEFAULT_ADDRESS = "127.0.0.1:8001"
DEFAULT_ADMIN_ADDRESS = "127.0.0.1:8002"
MAX_DIGITS = 18  # of a size: what the protocol's 64 bits hold in any case


def _address(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        return parse_address(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


address = click.option(
    "--address", default=DEFAULT_ADDRESS, show_default=True, metavar="HOST:PORT", callback=_address, help="Where inference listens."
)
admin_address = click.option(
    "--admin-address", default=DEFAULT_ADMIN_ADDRESS, show_default=True, metavar="HOST:PORT", callback=_address, help="Where admin listens."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
sets = click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Override a key of the configuration.")
model_version = click.option("--version", "model_version", default="", help="The model's version; the newest by default.")


def _pairs(what: str, values: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise click.UsageError(f"{text!r} is not {what}")
        if name in found:
            raise click.UsageError(f"{name!r} is given twice")
        found[name] = value
    return found


def _sizes(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    sizes = {}
    for axis, text in _pairs("AXIS=SIZE", values).items():
        if not text.isdecimal() or len(text) > MAX_DIGITS or int(text) == 0:
            raise click.UsageError(f"{axis}={text[:40]}: the size must be a positive whole number of at most {MAX_DIGITS} digits")
        sizes[axis] = int(text)
    return sizes


def _parameters(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    return _pairs("NAME=VALUE", values)


class Quantity(click.ParamType[float]):
    """A duration or a size as people write it; arrives as seconds or bytes."""

    def __init__(self, name: str, parse: Callable[[object], float]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds or bytes; a number was converted before."""
        if isinstance(value, int | float):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Finite(click.FloatRange):
    """A number within bounds; `nan` and `inf` are none."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """As click does, and finite."""
        found = float(super().convert(value, param, ctx))
        if not isfinite(found):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return found


DURATION = Quantity("duration", parse_duration)
SIZE = Quantity("size", parse_size)

sizes = click.argument("sizes", nargs=-1, metavar="AXIS=SIZE...", callback=_sizes)
parameters = click.option(
    "--param", "parameters", multiple=True, metavar="NAME=VALUE", callback=_parameters, help="A request parameter, such as a variant."
)


variants = click.option(
    "--variant", "variants", multiple=True, metavar="NAME=VALUE", callback=_parameters, help="A variant; the first of its set by default."
)


@dataclass(frozen=True, slots=True)
class Target:
    """The model, variant and shape that an admin command is about."""

    model: str
    version: str
    shape: dict[str, int]
    parameters: dict[str, str]


def target(command: Command) -> Command:
    """MODEL AXIS=SIZE… --param --version, handed over as `target`."""

    @wraps(command)
    def wrapped(model: str, sizes: dict[str, int], parameters: dict[str, str], model_version: str, **rest: Any) -> Any:
        return command(target=Target(model, model_version, sizes, parameters), **rest)

    return click.argument("model")(sizes(parameters(model_version(wrapped))))
