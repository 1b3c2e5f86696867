"""Commands that need no worker."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

import click

from service import __version__
from service import config as configuration
from service.cli import options, printing
from service.errors import ConfigError
from service.models.allowlist import check_sources
from service.models.building import check_declared
from service.models.place import Place


@click.group()
def config() -> None:
    """Look at configuration files."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
@options.sets
@options.as_json
def check(file: Path, sets: tuple[str, ...], as_json: bool) -> None:
    """Validate FILE without starting anything; exit code 2 where it is wrong."""
    loaded = configuration.load(file, sets)
    _check_models(loaded)
    models = [f"{model.name}:{model.version}" for model in loaded.models]
    if as_json:
        printing.print_json({"file": str(file), "models": models})
    else:
        click.echo(f"{file}: valid; models: {', '.join(models) or 'none: nothing is served until one is loaded through the admin port'}")


def _check_models(loaded: configuration.Config) -> None:
    problems = []
    for index, model in enumerate(loaded.models):
        try:
            check_sources(model, loaded.worker.allowed_factories, loaded.base_dir, place := Place.of_model(model.name, index))
            check_declared(model, place)
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))


@click.command()
@options.as_json
def version(as_json: bool) -> None:
    """Print versions of graphcache and of what it stands on."""
    versions = {"graphcache": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in ("torch", "grpcio", "protobuf", "numpy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    if as_json:
        printing.print_json(versions)
    else:
        for name, value in versions.items():
            click.echo(f"{name} {value}")
