"""From a model's configuration to a LoadedModel: the story of a load, whose steps live in the modules beside it.

Trial runs happen on an instance of their own, which is discarded: a model that changes itself still gives its first answer first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from cachepolicy.keys import digest
from service.config import ModelConfig
from service.imports import IMPORTING
from service.models.building import axis_limits, build_axes, build_inputs, build_outputs, build_spec, build_state, build_variants
from service.models.examples import examples_from_file
from service.models.loaded import ExampleInputs, LoadedModel
from service.models.place import Place
from service.models.probing import Probe, batch_sizes, check_outputs, infer_outputs, known_from_examples, probes, run
from service.models.sources import Source, class_sources, open_source
from service.models.spec import ModelSpec, Variant
from service.models.weights import load_weights

Layout = dict[str, tuple[object, ...] | None]


def load_model(
    config: ModelConfig, *, device: torch.device, allowed: Sequence[str], generation: int, base_dir: Path, index: int | None = None
) -> LoadedModel:
    """Load one model onto a device. `index` is its number in the configuration, None where an admin call brought it.

    Raises ConfigError naming the place, whatever the model's own code raised included.
    """
    with IMPORTING:
        return _load(config, device, allowed, generation, base_dir, index)


def _load(
    config: ModelConfig, device: torch.device, allowed: Sequence[str], generation: int, base_dir: Path, index: int | None
) -> LoadedModel:
    place = Place.of_model(config.name, index)
    source = open_source(config, allowed, base_dir, place)
    examples = _examples(config, source, base_dir, place)
    known = source.known or (known_from_examples(examples, config.batching.axis, _batches(config, source), place) if examples else {})
    inputs = build_inputs(config, known, place)
    axes = build_axes(config, inputs, known, place)
    minima = {name: limit.min for name, limit in axis_limits(inputs, known).items()} | dict(source.minima)
    declared = build_outputs(config, axes, place)
    variants = build_variants(config, [spec.name for spec in inputs], place)
    first_variant = tuple((name, values[0]) for name, values in variants)

    trial = source.make(device)
    before = layout(trial)
    buffers = {name: tuple(buffer.shape) for name, buffer in trial.named_buffers() if not is_lazy(buffer)}
    state = build_state(config, inputs, buffers, place)
    runs = probes(inputs, axes, state, batch_axis=config.batching.axis, minima=minima, examples=examples, place=place)
    results = [run(trial, probe, first_variant, device, place) for probe in runs]
    outputs = declared or infer_outputs([probe.sizes for probe in runs], results, place)
    spec = build_spec(config, place, inputs=inputs, axes=axes, outputs=outputs, variants=variants, state=state)
    for probe, result in zip(runs, results, strict=True):
        check_outputs(outputs, probe.sizes, result, place)
    for variant in spec.all_variants()[1:]:
        check_outputs(outputs, runs[0].sizes, run(trial, runs[0], variant, device, place), place)
    after = layout(trial)
    code = sorted(source.code | class_sources(trial))
    del trial, results

    grows = {name for name, described in after.items() if before.get(name) is None and described is not None}
    first_run = (runs[0], first_variant) if grows else None

    def instance(source: Source, generation: int) -> LoadedModel:
        module = _instance(config, source, device, base_dir, place, first_run=first_run)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # lanes have streams of their own, which do not wait for this one
        return LoadedModel(
            spec=spec,
            module=module,
            device=device,
            program=digest([code, config.args, after]),
            weights=f"{config.name}:{config.version}@{generation}",
            state={entry.buffer: module.get_buffer(entry.buffer) for entry in state},
            examples=_requested(examples, spec) if examples else None,
            fresh=fresh,
        )

    def fresh() -> LoadedModel:
        return instance(open_source(config, allowed, base_dir, place), 0)  # the source's own globals are not shared

    return instance(source, generation)


def layout(module: nn.Module) -> Layout:
    """Shape, dtype and strides of every parameter and buffer, by name; None in place of one that is not there yet (lazy modules)."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {name: None if is_lazy(t) else (list(t.shape), str(t.dtype), _strides(t)) for name, t in tensors}


def _strides(tensor: torch.Tensor) -> object:
    return list(tensor.stride()) if tensor.layout is torch.strided else str(tensor.layout)


def _instance(
    config: ModelConfig, source: Source, device: torch.device, base_dir: Path, place: Place, *, first_run: tuple[Probe, Variant] | None
) -> nn.Module:
    """The instance that serves. One that builds parts of itself in its first run has this run here, before its weights are loaded."""
    module = source.make(device)
    if first_run is not None:
        probe, variant = first_run
        run(module, probe, variant, device, place)
    if config.weights:
        load_weights(module, base_dir / config.weights, place.at("weights"))
    for parameter in module.parameters():  # TorchScript modules have no requires_grad_
        parameter.requires_grad = False
    return module


def _batches(config: ModelConfig, source: Source) -> tuple[int, int]:
    axis = config.axes.get(config.batching.axis)
    least = source.minima.get(config.batching.axis, 1)
    return batch_sizes((axis.max if axis else None) or least + 2, least)


def _examples(config: ModelConfig, source: Source, base_dir: Path, place: Place) -> ExampleInputs | None:
    if not config.examples:
        return source.examples
    return examples_from_file(base_dir / config.examples, config.inputs, config.batching.axis, place.at("examples"))


def _requested(examples: ExampleInputs, spec: ModelSpec) -> ExampleInputs:
    """Examples of what clients send: what the worker fills is left out."""
    names = [entry.name for entry in spec.requested_inputs]

    def requested(batch: int, seed: int) -> dict[str, torch.Tensor]:
        found = examples(batch, seed)
        return {name: found[name] for name in names}

    return requested
