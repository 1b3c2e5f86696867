"""The configuration file: what a user may write, checked in full at start. What models it names is looked at by `service.models`.

Every problem is one line that starts with the key's path: `models[0].inputs.tokens.datatyp: unknown key`. A key of a feature that does
not exist yet stands in NOT_BUILT and nowhere else: whoever builds the feature moves the key from there into a section below.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, Strict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from service.choices import Above, ArenaScope, Compile, Fill, Keep, LogFormat, Phase, Rows
from service.documents import override, parse_yaml
from service.errors import ConfigError
from service.messages import GraphMode
from service.tensors import Datatype
from service.units import Budget, parse_address, parse_budget, parse_duration, parse_optional_duration, parse_share, parse_size

# Path of a key → the values that already say what the worker does, and are therefore accepted.
NOT_BUILT: Mapping[str, tuple[object, ...]] = {
    "worker.frontends": (0,),
    "worker.tls": (),
    "requests": (),
    "telemetry.metrics": ("prometheus",),
}

_DEVICE = re.compile(r"auto|cpu|cuda:\d+")
_STORE = re.compile(r"sqlite|none|rediss?(\+(sentinel|cluster))?://\S+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _address(value: str) -> str:
    return parse_address(value) if value else ""


def _collector(value: object) -> object:
    if value is None or value == "none":
        return None
    if not isinstance(value, str):
        raise ValueError(f"must be none, http://host:port, https://host:port or host:port, not {value!r}")  # noqa: TRY004 (as above)
    scheme, separator, rest = value.rpartition("://")
    if separator and scheme not in ("http", "https"):
        raise ValueError(f"must be none, http://host:port, https://host:port or host:port, not {value!r}")
    parse_address(rest)
    return value


def _present(value: str) -> str:
    if not value:
        raise ValueError("can't be empty")
    return value


def _device(value: str) -> str:
    if not _DEVICE.fullmatch(value):
        raise ValueError(f"must be auto, cpu or cuda:N, not {value!r}")
    return value


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(f"must consist of letters, digits, '.', '_' and '-', not {value!r}")
    return value


def _profile_store(value: str) -> str:
    if not _STORE.fullmatch(value):  # a URL may have a password: it is not repeated
        raise ValueError("must be sqlite, none, or a URL such as redis://host:6379")
    return value


def _buckets(value: object) -> object:
    if value == "auto":
        return None
    if not isinstance(value, list) or not value or any(isinstance(size, bool) or not isinstance(size, int) for size in value):
        raise ValueError(f"must be auto or a list of sizes, not {value!r}")
    if value != sorted(set(value)) or value[0] < 1:
        raise ValueError(f"must be ascending sizes, not {value!r}")
    return tuple(value)


def _dimension(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise ValueError(f"must be an axis name or a size, not {value!r}")
    if isinstance(value, int) and value < 1:
        raise ValueError(f"must be at least 1, not {value}")
    return value


def _range(value: object) -> object:
    if not isinstance(value, list) or len(value) != 2 or any(isinstance(end, bool) or not isinstance(end, int) for end in value):
        raise ValueError(f"must be [low, high], two integers, not {value!r}")
    if value[0] > value[1]:
        raise ValueError(f"must be [low, high] with low ≤ high, not {value!r}")
    return tuple(value)


def _scalar(value: object) -> object:
    if not isinstance(value, bool | int | float):
        raise ValueError(f"must be a number or a bool, not {value!r}")  # noqa: TRY004 (pydantic reports ValueError)
    return value


Text = Annotated[str, Strict()]
Name = Annotated[Text, AfterValidator(_name)]
Address = Annotated[Text, AfterValidator(_address)]
Flag = Annotated[bool, Strict()]
Count = Annotated[int, Strict(), Field(ge=1)]
Whole = Annotated[int, Strict(), Field(ge=0)]
Size = Annotated[int, BeforeValidator(parse_size)]
Duration = Annotated[float, BeforeValidator(parse_duration)]
Share = Annotated[float, BeforeValidator(parse_share)]
OptionalDuration = Annotated[float | None, BeforeValidator(parse_optional_duration)]
Dimension = Annotated[str | int, BeforeValidator(_dimension)]
Shape = tuple[Dimension, ...]


class Section(BaseModel):
    """A mapping of the file: immutable, no key beside those declared."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LimitsConfig(Section):
    """What one worker holds at most: bytes of a message, waiting requests, their bytes, streams of a connection."""

    message: Size = 64 << 20
    waiting: Count = 1024
    waiting_bytes: Size = 1 << 30
    streams: Count = 100


class WorkerConfig(Section):
    """The process: its addresses, device and limits. Durations are seconds; an empty address is off."""

    name: Text = ""
    listen: Annotated[Address, AfterValidator(_present)] = "127.0.0.1:8001"
    admin_listen: Address = "127.0.0.1:8002"
    metrics_listen: Address = "127.0.0.1:8003"
    probe_listen: Address = "127.0.0.1:8004"
    device: Annotated[Text, AfterValidator(_device)] = "auto"
    allowed_factories: tuple[Text, ...] = ("service.models.demo:*",)
    state_dir: Text = "~/.local/state/graphcache"
    default_deadline: OptionalDuration = None
    drain: Duration = 15.0
    limits: LimitsConfig = LimitsConfig()


class CaptureConfig(Section):
    """When graphs are captured. `shadow`: decide and count, do nothing."""

    background: Flag = True
    min_gain: Share = 0.05  # of the replay's time, that eager has to take more
    shadow: Flag = False
    max_nodes: Count = 5000  # of a graph: while it is made ready, requests wait for the driver


class PrewarmEntry(Section):
    """A bucket to capture at start. An empty version means the only one."""

    model: Name
    version: Text = ""
    shape: Annotated[dict[Text, Count], Field(min_length=1)]
    variant: dict[Text, Text] = {}


class PrewarmConfig(Section):
    """What is captured before traffic: at most so many seconds and graphs. `wait`: the worker is not ready before that."""

    wait: Flag = True
    at_most: Duration = 20.0
    graphs: Whole = 32
    list: tuple[PrewarmEntry, ...] = ()


class CacheConfig(Section):
    """The resident graphs."""

    budget: Annotated[InstanceOf[Budget], BeforeValidator(parse_budget)] = Budget(bytes=512 << 20)
    arena: ArenaScope = ArenaScope.MODEL
    capture: CaptureConfig = CaptureConfig()
    prewarm: PrewarmConfig = PrewarmConfig()
    audit: Share = 0.001  # of replays, run again eagerly when idle


class TelemetryConfig(Section):
    """Traces and logs. `otlp` is a collector's address, None where nothing is traced; `keep` adds to the sampled share."""

    otlp: Annotated[str | None, BeforeValidator(_collector)] = None
    sample: Share = 0.01
    keep: frozenset[Keep] = frozenset(Keep)
    logs: LogFormat = LogFormat.TEXT


class InputConfig(Section):
    """One input. Datatype and shape are inferred where left out; `pad` defaults to 0, or to the range's low end."""

    datatype: Datatype | None = None
    shape: Shape | None = None
    pad: Annotated[bool | int | float | None, BeforeValidator(_scalar)] = None
    fill: Fill | None = None
    fill_axis: Text = ""
    range: Annotated[tuple[int, int] | None, BeforeValidator(_range)] = None


class OutputConfig(Section):
    """One output, in the order of the model's results. The dimension "?" is one that no axis tells."""

    datatype: Datatype
    shape: Shape


class AxisConfig(Section):
    """A dynamic axis. `buckets` None means auto; `max` None means inferred, else 64."""

    max: Count | None = None
    buckets: Annotated[tuple[int, ...] | None, BeforeValidator(_buckets)] = None
    above: Above = Above.REJECT


class StateConfig(Section):
    """A buffer that requests may change, addressed by slots; the last `scratch` slots are the worker's."""

    buffer: Text
    index_input: Text
    scratch: Count = 1


class BatchingConfig(Section):
    """The axis that requests are stacked along, and how long the first of them waits for others."""

    axis: Text = "batch"
    max_wait: Duration = 0.002


class ToleranceConfig(Section):
    """How far a replay may be from eager."""

    rtol: Annotated[float, Field(ge=0)]
    atol: Annotated[float, Field(ge=0)]


class ModelConfig(Section):
    """One model. Exactly one of `factory` and `program` is set; paths are relative to the configuration's folder."""

    name: Name
    version: Name = "1"
    factory: Text = ""
    program: Text = ""
    args: dict[Text, object] = {}
    weights: Text = ""
    inputs: dict[Text, InputConfig] = {}
    outputs: dict[Text, OutputConfig] = {}
    axes: dict[Text, AxisConfig] = {}
    rows: Rows = Rows.AUTO
    variants: dict[Text, tuple[Text, ...]] = {}
    state: tuple[StateConfig, ...] = ()
    phase: Phase = Phase.ANY
    batching: BatchingConfig = BatchingConfig()
    compile: Compile = Compile.NONE
    mode: GraphMode = GraphMode.AUTO
    tolerance: dict[Datatype, ToleranceConfig] = {}
    examples: Text = ""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if bool(self.factory) == bool(self.program):
            raise ValueError("needs either factory or program")
        if self.program and self.args:
            raise ValueError("args are a factory's; a program takes none")
        return self

    @property
    def axes_told(self) -> frozenset[str]:
        """Axes that the declared shapes name."""
        return frozenset(part for declared in self.inputs.values() for part in declared.shape or () if isinstance(part, str))

    def may_have(self, axis: str) -> bool:
        """Whether there may be such an axis. Examples add the batching axis only, a program brings names of its own."""
        return bool(self.program) or axis == self.batching.axis or axis in self.axes_told


class _Document(Section):
    worker: WorkerConfig = WorkerConfig()
    cache: CacheConfig = CacheConfig()
    profile_store: Annotated[Text, AfterValidator(_profile_store)] = "sqlite"
    telemetry: TelemetryConfig = TelemetryConfig()
    models: tuple[ModelConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration that holds together. `base_dir` is the file's folder: relative paths start there."""

    base_dir: Path
    worker: WorkerConfig
    cache: CacheConfig
    telemetry: TelemetryConfig
    profile_store: str
    models: tuple[ModelConfig, ...]

    @property
    def state_dir(self) -> Path:
        """Where the worker keeps what outlives it."""
        return self.base_dir / Path(self.worker.state_dir).expanduser()


def load(path: Path | None, sets: Sequence[str] = (), *, demo: bool = False) -> Config:
    """Read the file, or the bundled demo configuration, and apply overrides `a.b=c`. Raises ConfigError, a line for each problem."""
    if demo == (path is not None):
        raise ConfigError("configuration: give either a file (-c FILE) or --demo")
    if path is None:
        with resources.as_file(resources.files("service.models") / "demo.yaml") as bundled:
            return _load_file(bundled, sets)
    return _load_file(path, sets)


def parse_model(text: str, place: str = "model") -> ModelConfig:
    """One model's section, written as YAML or JSON; a load at run time brings one. Raises ConfigError."""
    try:
        return ModelConfig.model_validate(parse_yaml(text, place))
    except ValidationError as error:
        raise ConfigError("\n".join(_line(place, problem) for problem in error.errors())) from None


def _load_file(path: Path, sets: Sequence[str]) -> Config:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise ConfigError(f"{path}: {reason}") from None
    raw = parse_yaml(text, str(path))
    raw = {} if raw is None else raw
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: must be a mapping of sections")
    raw = {section: content for section, content in raw.items() if content is not None}  # a heading whose lines are all comments
    for assignment in sets:
        override(raw, assignment)
    document = _validate(raw)
    problems = list(_contradictions(document))
    if problems:
        raise ConfigError("\n".join(problems))
    return Config(path.parent.resolve(), document.worker, document.cache, document.telemetry, document.profile_store, document.models)


def _validate(raw: dict[object, object]) -> _Document:
    raw = copy.deepcopy(raw)
    problems = [f"{path}: not built yet" for path, accepted in NOT_BUILT.items() if not _take(raw, path.split("."), accepted)]
    try:
        document = _Document.model_validate(raw)
    except ValidationError as error:
        problems += [_line("", problem) for problem in error.errors()]
    if problems:
        raise ConfigError("\n".join(problems))
    return document


def _take(node: object, path: list[str], accepted: tuple[object, ...]) -> bool:
    """Remove a key that is not built; False where it was set to something that the worker does not do."""
    for step in path[:-1]:
        node = node.get(step) if isinstance(node, dict) else None
    if not isinstance(node, dict) or path[-1] not in node:
        return True
    value = node.pop(path[-1])
    return any(type(value) is type(known) and value == known for known in accepted)


def _contradictions(document: _Document) -> Iterator[str]:
    """What is wrong between keys that are each right."""
    seen: dict[tuple[str, str], int] = {}
    for index, model in enumerate(document.models):
        first = seen.setdefault((model.name, model.version), index)
        if first != index:
            yield f"models[{index}].name: {model.name} version {model.version} is models[{first}] already"
    for index, entry in enumerate(document.cache.prewarm.list):
        versions = [version for name, version in seen if name == entry.model]
        place = f"cache.prewarm.list[{index}]"
        if not versions:
            yield f"{place}.model: no model is named {entry.model}"
        elif entry.version and entry.version not in versions:
            yield f"{place}.version: {entry.model} has no version {entry.version}"
        elif not entry.version and len(versions) > 1:
            yield f"{place}.version: missing; {entry.model} has versions {', '.join(versions)}"
        else:
            yield from _problems_of(entry, document.models[seen[entry.model, entry.version or versions[0]]], place)


def _problems_of(entry: PrewarmEntry, model: ModelConfig, place: str) -> Iterator[str]:
    for axis, size in entry.shape.items():
        maximum = model.axes[axis].max if axis in model.axes else None
        if not model.may_have(axis):
            yield f"{place}.shape.{axis}: {model.name} has no such axis"
        elif maximum is not None and size > maximum:
            yield f"{place}.shape.{axis}: {size} is above the axis' maximum, {maximum}"
    for axis in sorted(model.axes_told - entry.shape.keys()):
        yield f"{place}.shape.{axis}: missing; a shape names every axis"
    for name, value in entry.variant.items():
        if value not in model.variants.get(name, ()):
            yield f"{place}.variant.{name}: {model.name} has no variant {name}={value}"


def _line(place: str, problem: ErrorDetails) -> str:
    path = place
    for step in problem["loc"]:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step != "[key]":  # pydantic's mark of a key that is wrong itself
            path += f".{step}" if path else step
    match problem["type"]:
        case "extra_forbidden":
            text = "unknown key"
        case "missing":
            text = "missing"
        case "value_error":
            text = str(problem["ctx"]["error"])
        case "string_type":
            text = f"must be text (numbers and words like yes in quotes), not {problem['input']!r}"
        case "model_type" | "dict_type":
            text = f"must be a mapping, not {problem['input']!r}"
        case "tuple_type":
            text = f"must be a list, not {problem['input']!r}"
        case _:
            text = f"{re.sub('^(Input|Value|Dictionary) should', 'must', problem['msg'])}, not {problem['input']!r}"
    return f"{path}: {text}"
