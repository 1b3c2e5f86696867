"""One visit: load a model alone, examine it, report. No server is started."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from service.backends.opening import open_backend
from service.config import Config, ModelConfig, parse_model
from service.doctor.diagnosis import Diagnosis, Doctor
from service.doctor.patient import Patient
from service.doctor.profit import Profit, profit
from service.errors import ConfigError
from service.models.allowlist import FILE
from service.models.loaded import LoadedModel
from service.models.loading import load_model
from service.models.spec import ModelSpec, Shape, Variant


@dataclass(frozen=True, slots=True)
class Case:
    """A model's configuration, and what is needed to load it."""

    model: ModelConfig
    device: str
    allowed: Sequence[str]
    base_dir: Path

    @classmethod
    def of(cls, config: Config, name: str, version: str = "") -> Case:
        """A model of a configuration, the last of its name where no version is given. Raises ConfigError."""
        found = [model for model in config.models if model.name == name and version in ("", model.version)]
        if not found:
            known = ", ".join(f"{model.name}:{model.version}" for model in config.models)
            raise ConfigError(f"no model is named {name}{':' if version else ''}{version}; configured are {known or 'none'}")
        return cls(found[-1], config.worker.device, config.worker.allowed_factories, config.base_dir)

    @classmethod
    def of_file(cls, factory: str, device: str) -> Case:
        """A Python file, given as `file:PATH.py`, with everything inferred."""
        path = Path(factory.removeprefix(FILE)).absolute()
        name = re.sub(r"[^A-Za-z0-9._-]", "_", path.stem).lstrip("._-") or "model"
        section = json.dumps({"name": name, "factory": f"{FILE}{path}"})
        return cls(parse_model(section, factory), device, (f"{FILE}{path}",), path.parent)


@dataclass(frozen=True, slots=True)
class Report:
    """What a visit found. `profit` is None where it was not asked for."""

    model: str
    variant: Variant
    sizes: Shape
    bucket: Shape
    device: str
    diagnosis: Diagnosis
    profit: Profit | None = None


def consult(case: Case, sizes: Mapping[str, int], choices: Mapping[str, str], *, with_profit: bool, steps: int) -> Report:
    """Examine one variant of a model at the given sizes. Raises ConfigError; ModelRaised where the step does not even run eagerly."""
    backend = open_backend(case.device)

    def load() -> LoadedModel:
        return load_model(
            case.model, device=torch.device(backend.device), allowed=case.allowed, generation=0, base_dir=case.base_dir, index=None
        )

    model = load()
    patient = Patient.at(model, _variant(model.spec, choices), sizes)
    doctor = Doctor(backend, load)
    try:
        diagnosis, recording = doctor.examine(patient)
        gain = profit(doctor.bench, patient, diagnosis, recording, steps) if with_profit else None
        if recording is not None:
            doctor.lane.barrier()
            doctor.capturer.submit(recording.close).result()
    finally:
        doctor.close()
    return Report(model.spec.name, patient.variant, patient.sizes, patient.bucket.as_dict(), str(model.device), diagnosis, gain)


def _variant(spec: ModelSpec, choices: Mapping[str, str]) -> Variant:
    declared = dict(spec.variants)
    for name, value in choices.items():
        if value not in declared.get(name, ()):
            known = "; ".join(f"{choice}: {', '.join(values)}" for choice, values in spec.variants)
            raise ConfigError(f"--variant {name}={value}: {spec.name} has {known or 'no variants'}")
    return tuple((name, choices.get(name, values[0])) for name, values in spec.variants)
