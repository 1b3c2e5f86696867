"""The CPU as a device: steps are recorded into a static program on static buffers, lowered, and replayed without the model's Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch

from cachepolicy.buckets import Bucket
from cachepolicy.keys import Environment
from cachepolicy.reasons import RefusalReason
from service.backends.base import Batch, CaptureTimings, DeviceMemory, Outputs, Padding, refuse_many_nodes
from service.backends.eager import split_outputs, stack_inputs
from service.backends.environment import describe
from service.backends.host_memory import host_memory
from service.backends.lowering import Step, TorchScript, lower
from service.backends.program import record_program
from service.backends.staging import InputStaging, OutputStaging
from service.backends.staleness import Addresses
from service.backends.watch import refuse_training
from service.errors import CaptureRefused, ModelRaised, OutOfDeviceMemory, said, told
from service.imports import import_dynamo
from service.models.loaded import LoadedModel
from service.models.spec import UNNAMED, Variant


class CpuRecording:
    """A lowered program with its static buffers. It holds the weights it reads: updates in place are seen, replaced weights are not."""

    arena = ""
    arena_bytes = 0
    driver_bytes = 0

    def __init__(
        self,
        bucket: Bucket,
        inputs: InputStaging,
        outputs: OutputStaging,
        step: Step,
        nodes: int,
        addresses: Addresses,
        timings: CaptureTimings,
    ) -> None:
        self.bucket = bucket
        self.bytes = inputs.nbytes + outputs.nbytes  # weights are shared, intermediates come and go
        self.nodes = nodes
        self.timings = timings
        self._inputs = inputs
        self._outputs = outputs
        self._step: Step | None = step
        self._addresses = addresses

    def replay(self, batch: Batch, padding: Padding = Padding.VALUE) -> list[Outputs]:
        """See Recording."""
        self._inputs.write(batch, padding)
        self.launch()
        return self._outputs.cut(batch)

    def launch(self) -> None:
        """Run on the static buffers as they are."""
        assert self._step is not None, "closed"
        self._step()

    def addresses_unchanged(self) -> bool:
        """See Recording."""
        return self._addresses.unchanged()

    def close(self) -> None:
        """See Recording."""
        self._step = None


class CpuBackend:
    """The host's cores as one device, but for one that the event loop needs.

    Threads that wait for each other at the end of every operation lose whole time slices where they have to share a core: on two cores
    a step of 2 ms took 10 to 500. `OMP_NUM_THREADS` has the last word.
    """

    device = "cpu"

    def __init__(self, max_nodes: int | None = None) -> None:
        self._max_nodes = max_nodes
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))

    def environment(self) -> Environment:
        """See Backend."""
        return describe(torch.device("cpu"), lowering=TorchScript.name)

    def memory(self) -> DeviceMemory:
        """See Backend."""
        return host_memory()

    def arena_bytes(self, arena: str) -> int:
        """See Backend."""
        return 0

    @contextmanager
    def lane(self) -> Iterator[None]:
        """See Backend."""
        with torch.no_grad():
            yield

    @contextmanager
    def capturer(self) -> Iterator[None]:
        """See Backend."""
        import_dynamo()
        with torch.no_grad():
            yield

    def run_eager(self, model: LoadedModel, variant: Variant, batch: Batch) -> list[Outputs]:
        """See Backend."""
        inputs = stack_inputs(model, batch)
        try:
            outputs = model.forward(inputs, variant)
        except ModelRaised:
            raise
        except Exception as error:
            if isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in said(error):
                raise OutOfDeviceMemory(said(error)) from error
            raise ModelRaised(error) from error
        return split_outputs(model, batch, outputs)

    def record(self, model: LoadedModel, variant: Variant, bucket: Bucket, *, own_pool: bool = False) -> CpuRecording:
        """See Backend. Memory is the host's: there are no pools."""
        refuse_training(model.module)
        sizes = bucket.as_dict()
        inputs = InputStaging(model.spec, sizes)
        inputs.write_safe()
        given = inputs.views(inputs.host)
        if any(UNNAMED in output.shape for output in model.spec.outputs):
            record_program(model, variant, given, {}, sizes)  # refuses, and names the operation whose result's size follows values
        outputs = OutputStaging(model.spec, sizes)
        targets = outputs.views(outputs.host)
        timings = CaptureTimings()
        started = perf_counter()
        try:  # on copies, since it has not been shown yet that the step leaves its inputs alone
            model.forward({name: tensor.clone() for name, tensor in given.items()}, variant)
        except Exception as error:
            raise CaptureRefused(RefusalReason.CAPTURE_ERROR, told(error)) from error
        timings.warm_up = perf_counter() - started
        started = perf_counter()
        program = record_program(model, variant, given, targets, sizes)
        timings.capture = perf_counter() - started
        refuse_many_nodes(program.operations, self._max_nodes)
        started = perf_counter()
        step = lower(program, model.spec.compile)
        timings.instantiate = perf_counter() - started
        started = perf_counter()
        step()
        timings.first_launch = perf_counter() - started
        return CpuRecording(bucket, inputs, outputs, step, program.operations, Addresses(model.module), timings)

    def close(self) -> None:
        """See Backend."""
