"""Short runs of eager and of a recording, turn about, to know which is faster.

At most `STEPS` steps for each size. They wait for moments without requests, up to a limit: a worker that is never idle has to know, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import monotonic, perf_counter, sleep

import numpy as np

from cachepolicy.buckets import Bucket
from cachepolicy.reasons import RefusalReason
from service.backends.base import Backend, Batch, Padding, Part, Recording
from service.errors import CaptureRefused, ModelRaised, OutOfDeviceMemory
from service.lane import Lane
from service.measuring import Figures, Sample
from service.models.loaded import LoadedModel
from service.models.spec import ModelSpec, Shape, Variant
from service.tensors import HostTensor
from service.verification.samples import Accepted, Inputs, Kind, Sampler, crop

_ROUNDS = 7
_FEW = 3  # rounds that are enough where all of them agree
_CLEAR = 1.25  # and the one is faster than the other by this factor
STEPS = 2 * _ROUNDS + 1
_PATIENCE_S = 1.0  # waiting for idle moments, over a whole measurement
_PAUSE_S = 0.001
_REST = 3.0  # beside requests: pause that many times as long as a step ran


class Stopwatch:
    """See service.measuring.Timer. `idle` tells whether no request waits or runs."""

    def __init__(self, backend: Backend, accepted: Accepted, idle: Callable[[], bool]) -> None:
        self._backend = backend
        self._accepted = accepted
        self._idle = idle

    def time(
        self, model: LoadedModel, variant: Variant, recording: Recording, padding: Padding, sizes: Sequence[tuple[Shape, int]], lane: Lane
    ) -> Figures:
        """See Timer."""
        sampler = Sampler(model, self._accepted.of(model.spec.name))
        drawn = sampler.draw(recording.bucket.as_dict(), Kind.NATURAL, 1)
        runs = _Runs(lane, self._idle)
        samples = []
        for shape, weight in sizes:
            batch = Batch([Part(_on_scratch(model.spec, crop(model.spec, drawn, shape)), shape)], shape)
            eager_s, replay_s = self._compare(
                lambda batch=batch: self._backend.run_eager(model, variant, batch),  # type: ignore[misc]
                lambda batch=batch: recording.replay(batch, padding),  # type: ignore[misc]
                runs,
            )
            samples.append(Sample(Bucket(tuple(shape.items())), weight, eager_s, replay_s))
        return Figures(samples, runs.busy_s, runs.contended)

    @staticmethod
    def _compare(eager: Callable[[], object], replay: Callable[[], object], runs: _Runs) -> tuple[float, float]:
        runs.run(eager)  # the first run at a size may build what later ones find
        eagers: list[float] = []
        replays: list[float] = []
        for done in range(1, _ROUNDS + 1):
            eagers.append(runs.run(eager))
            replays.append(runs.run(replay))
            if done >= _FEW and (min(eagers) > _CLEAR * max(replays) or min(replays) > _CLEAR * max(eagers)):
                break
        return median(eagers), median(replays)


class _Runs:
    """Timed items on the lane."""

    def __init__(self, lane: Lane, idle: Callable[[], bool]) -> None:
        self.busy_s = 0.0
        self.contended = False
        self._lane = lane
        self._idle = idle
        self._patience_s = _PATIENCE_S

    def run(self, step: Callable[[], object]) -> float:
        """Seconds of one step. Raises CaptureRefused where it raises or finds no memory."""
        started = monotonic()
        while not self._idle() and monotonic() - started < self._patience_s:
            sleep(_PAUSE_S)
        self._patience_s = max(0.0, self._patience_s - (monotonic() - started))
        shared = not self._idle()

        def timed() -> float:
            began = perf_counter()
            step()
            return perf_counter() - began

        try:
            seconds = self._lane.submit(timed).result()
        except OutOfDeviceMemory as error:
            raise CaptureRefused(RefusalReason.OUT_OF_MEMORY, f"no memory to measure the graph: {error}") from error
        except ModelRaised as error:
            raise CaptureRefused(RefusalReason.CAPTURE_ERROR, f"the model raised while the graph was measured: {error}") from error
        self.busy_s += seconds
        if shared or not self._idle():
            self.contended = True
            sleep(_REST * seconds)
        return seconds


def _on_scratch(spec: ModelSpec, inputs: Inputs) -> Inputs:
    """Rows of a model with state name scratch slots in turn. Several may share one: only time is looked at."""
    placed = dict(inputs)
    for state in spec.state:
        like = inputs[state.index_input]
        rows = np.arange(int(np.prod(like.shape))).reshape(like.shape)
        placed[state.index_input] = HostTensor.of(like.datatype, (state.slots + rows % state.scratch).astype(like.datatype.bits))
    return placed
