"""Cutting a request that is larger than the largest bucket into parts along the batch axis, and joining what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from service.backends.base import Part
from service.batcher import PartResult
from service.messages import Outcome, Path
from service.models.spec import ModelSpec
from service.tensors import HostTensor


def split(spec: ModelSpec, part: Part, rows: int) -> list[Part]:
    """Parts of at most `rows` rows. Every input and output carries the batch axis."""
    axis = spec.batch_axis
    total = part.shape[axis]
    positions = {s.name: s.shape.index(axis) for s in spec.requested_inputs}
    parts = []
    for start in range(0, total, rows):
        stop = min(start + rows, total)
        inputs = {name: _rows(part.inputs[name], position, start, stop) for name, position in positions.items()}
        parts.append(Part(inputs, {**part.shape, axis: stop - start}))
    return parts


def join(spec: ModelSpec, results: Sequence[PartResult]) -> PartResult:
    """One result of several: replayed only if every part was; the first fallback's reason stands for the whole."""
    outputs = {}
    for output in spec.outputs:
        pieces = [result.outputs[output.name] for result in results]
        joined = np.concatenate([piece.bits() for piece in pieces], axis=output.shape.index(spec.batch_axis))
        outputs[output.name] = HostTensor.of(output.datatype, joined)
    outcomes = [result.outcome for result in results]
    return PartResult(outputs, _worst(outcomes))


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    first = next((outcome for outcome in outcomes if outcome.path is Path.EAGER), outcomes[0])
    largest = max((o.bucket for o in outcomes if o.bucket is not None), key=lambda bucket: bucket.volume, default=None)
    return replace(
        first,
        bucket=largest if first.path is Path.REPLAY else first.bucket,
        padding_ratio=sum(o.padding_ratio for o in outcomes) / len(outcomes),
        batch_rows=max(o.batch_rows for o in outcomes),
        parts=len(outcomes),
        queue_s=max(o.queue_s for o in outcomes),
        execute_s=sum(o.execute_s for o in outcomes),
    )


def _rows(tensor: HostTensor, position: int, start: int, stop: int) -> HostTensor:
    if position == 0:  # rows are contiguous: no copy
        stride = tensor.nbytes // tensor.shape[0]
        return HostTensor(tensor.datatype, (stop - start, *tensor.shape[1:]), memoryview(tensor.data)[start * stride : stop * stride])
    index = (slice(None),) * position + (slice(start, stop),)
    return HostTensor.of(tensor.datatype, tensor.bits()[index])
