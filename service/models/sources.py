"""Where a model's code comes from: an allowed Python function, an allowed Python file, or an exported program."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from service.config import ModelConfig
from service.models.allowlist import FILE, allowed_file, allowed_function
from service.models.building import KnownInput
from service.models.loaded import ExampleInputs
from service.models.place import Place
from service.models.program import open_program

_registering: dict[tuple[Path, str], ModuleType] = {}  # files that register operators, by their content's digest


@dataclass(frozen=True, slots=True)
class Source:
    """Makes instances of a model on a device, and tells what is known of it without running it.

    `code` are the digests of what the code was read from.
    """

    make: Callable[[torch.device], nn.Module]
    code: frozenset[str]
    examples: ExampleInputs | None = None
    minima: Mapping[str, int] = field(default_factory=dict)  # of axes that the source does not show in `known`
    known: Mapping[str, KnownInput] = field(default_factory=dict)


def open_source(config: ModelConfig, allowed: Sequence[str], base_dir: Path, place: Place) -> Source:
    """Find and import a model's code. Raises ConfigError."""
    if config.program:
        program = open_program(base_dir / config.program, config.batching.axis, place.at("program"))
        return Source(program.make, frozenset({program.digest}), known=program.known)
    at = place.at("factory")
    if config.factory.startswith(FILE):
        return _file(config, allowed_file(config.factory, allowed, base_dir, at), at)
    return _function(config, allowed, at)


def class_sources(module: nn.Module) -> frozenset[str]:
    """Digests of the files that define the classes of a model's modules; torch's own are covered by its version."""
    names = {type(part).__module__ for part in module.modules()}
    paths = (getattr(sys.modules.get(name), "__file__", None) for name in names if name.partition(".")[0] != "torch")
    return frozenset(_digest(Path(path).read_bytes()) for path in paths if path and Path(path).is_file())


def _function(config: ModelConfig, allowed: Sequence[str], at: Place) -> Source:
    module_name, name = allowed_function(config.factory, allowed, at)
    with at.blamed(f"importing {module_name}"):
        module = importlib.import_module(module_name)
    factory = getattr(module, name, None)
    # What a module merely imported is not its to offer: `module:*` would allow far more than it seems to.
    if not callable(factory) or getattr(factory, "__module__", None) != module_name:
        raise at.error(f"{module_name} defines no function {name}")
    return Source(_caller(factory, config, at), frozenset({_digest(inspect.getsource(module).encode())}))


def _file(config: ModelConfig, path: Path, at: Place) -> Source:
    module, digest = _run_file(path, at)
    make, examples = getattr(module, "make_model", None), getattr(module, "example_inputs", None)
    if not callable(make):
        raise at.error(f"{path.name} has no make_model()")
    min_batch = getattr(module, "MIN_BATCH", 1)
    if not isinstance(min_batch, int) or min_batch < 1:
        raise at.error(f"{path.name}: MIN_BATCH must be a positive integer")
    return Source(
        _caller(make, config, at), frozenset({digest}), examples if callable(examples) else None, {config.batching.axis: min_batch}
    )


def _run_file(path: Path, at: Place) -> tuple[ModuleType, str]:
    """Run a Python file as a module. Named by its content and read once: no stale byte code, and what is digested is what runs.

    Each load runs it anew, so that nothing is shared with what was loaded before, unless it registers operators: to register those
    again would break the model that uses them.
    """
    source = path.read_bytes()
    digest = _digest(source)
    if (path, digest) in _registering:
        return _registering[path, digest], digest
    module = ModuleType(f"graphcache_file_{digest}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and pickling look a class' module up
    operators = _operators()
    try:
        with at.blamed(f"running {path.name}"):
            exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102 (an allowed file: to run it is what was asked for)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    if _operators() > operators:
        _registering[path, digest] = module
    return module, digest


def _operators() -> int:
    return len(torch._C._dispatch_get_all_op_names())  # noqa: SLF001 - torch offers no other count


def _caller(factory: Callable[..., object], config: ModelConfig, at: Place) -> Callable[[torch.device], nn.Module]:
    def make(device: torch.device) -> nn.Module:
        with at.blamed(f"{config.factory}({', '.join(f'{k}={v!r}' for k, v in config.args.items())})"):
            module = factory(**config.args)
        if not isinstance(module, nn.Module):
            raise at.error(f"{config.factory} returned {type(module).__name__}, not a torch.nn.Module")
        return module.to(device)

    return make


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
