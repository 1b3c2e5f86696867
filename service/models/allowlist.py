"""Which Python code a configuration or an admin call may name: `module:function`, `module:*` and `file:GLOB`.

Nothing here imports or reads what is named, so that a configuration can be checked without torch.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from service.config import ModelConfig
from service.models.place import Place

FILE = "file:"
_FUNCTION = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z]\w*)")


def check_sources(config: ModelConfig, allowed: Sequence[str], base_dir: Path, place: Place) -> None:
    """Raise ConfigError where a model's factory is not allowed, or a file that it names is not there."""
    if config.factory.startswith(FILE):
        allowed_file(config.factory, allowed, base_dir, place.at("factory"))
    elif config.factory:
        allowed_function(config.factory, allowed, place.at("factory"))
    for key, name in (("program", config.program), ("weights", config.weights), ("examples", config.examples)):
        if name:
            place.at(key).existing(base_dir / name)


def allowed_function(factory: str, allowed: Sequence[str], place: Place) -> tuple[str, str]:
    """Module and function of a `module:function` factory. Raises ConfigError unless a pattern names it, or all of its module."""
    match = _FUNCTION.fullmatch(factory)
    if match is None:
        raise place.error(f"must be module:function or file:PATH.py, not {factory!r}")
    module, function = match.groups()
    if not {factory, f"{module}:*"} & set(allowed):
        raise place.error(f"{factory} is not in worker.allowed_factories ({', '.join(allowed) or 'empty'})")
    return module, function


def allowed_file(factory: str, allowed: Sequence[str], base_dir: Path, place: Place) -> Path:
    """The real path of a `file:PATH` factory. Raises ConfigError.

    The path must match a `file:GLOB`, both taken from `base_dir` and freed of `..`; and wherever links lead, it must stay inside the
    folder that the pattern starts with. `*` does not cross folders, `**` does.
    """
    base = base_dir.resolve()
    path = Path(os.path.normpath(base / factory.removeprefix(FILE)))
    for pattern in allowed:
        if not pattern.startswith(FILE):
            continue
        glob = Path(os.path.normpath(base / pattern.removeprefix(FILE)))
        if _matches(path.parts, glob.parts):
            real = path.resolve()
            if not real.is_relative_to(_fixed_folder(glob).resolve()):
                raise place.error(f"{factory} leads out of {pattern}, which allows it")
            if not real.is_file():
                raise place.error(f"{factory}: no such file")
            return real
    raise place.error(f"{factory} is not in worker.allowed_factories ({', '.join(allowed) or 'empty'})")


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or bool(parts and _matches(parts[1:], pattern))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _fixed_folder(glob: Path) -> Path:
    """The folders before the first wildcard; of a plain path, its folder."""
    fixed: list[str] = []
    for part in glob.parts[:-1]:
        if any(mark in part for mark in "*?["):
            break
        fixed.append(part)
    return Path(*fixed)
