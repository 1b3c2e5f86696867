"""A CUDA device: steps are captured as graphs in the capturer's thread and replayed on the lane's stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import perf_counter

import torch

from cachepolicy.buckets import Bucket
from cachepolicy.keys import Environment
from service.backends.base import Batch, CaptureTimings, DeviceMemory, Outputs, Padding, refuse_many_nodes
from service.backends.blockers import paths_of
from service.backends.calls import Calls
from service.backends.cuda_capture import CAPTURE_LOCK, CaptureFailed, capture
from service.backends.cuda_errors import capture_error, eager_error, is_lost
from service.backends.cuda_memory import Pools, device_memory
from service.backends.cuda_runtime import copier, count_nodes, upload
from service.backends.eager import split_outputs, stack_inputs
from service.backends.environment import describe
from service.backends.lowering import Step, lower
from service.backends.program import check_outputs, record_program
from service.backends.staging import InputStaging, OutputStaging
from service.backends.staleness import Addresses
from service.backends.watch import Watch, refuse_training
from service.choices import Compile
from service.errors import DeviceLost
from service.imports import import_dynamo
from service.models.loaded import LoadedModel
from service.models.spec import Variant

NODE_BYTES = 2560  # device memory that the driver takes per node, outside the allocator


class StaticBuffers:
    """A bucket's inputs and outputs on the host and on the device, outside any pool: one copy in, one copy out, on the lane's stream."""

    def __init__(self, model: LoadedModel, sizes: Mapping[str, int], lane: torch.cuda.Stream) -> None:
        self.inputs = InputStaging(model.spec, sizes, pinned=True)
        self.outputs = OutputStaging(model.spec, sizes, pinned=True)
        self.device_in = torch.empty(self.inputs.nbytes, dtype=torch.uint8, device=model.device)
        self.device_out = torch.zeros(self.outputs.nbytes, dtype=torch.uint8, device=model.device)
        self.nbytes = self.inputs.nbytes + self.outputs.nbytes
        self.copy_in = copier(self.device_in, self.inputs.host, lane)
        self.copy_out = copier(self.outputs.host, self.device_out, lane)


class CudaRecording:
    """A captured graph with its static buffers. It keeps alive everything that the graph reads."""

    def __init__(
        self,
        bucket: Bucket,
        buffers: StaticBuffers,
        graph: torch.cuda.CUDAGraph,
        nodes: int,
        lane: torch.cuda.Stream,
        reads: tuple[torch.Tensor, ...],
        addresses: Addresses,
        timings: CaptureTimings,
        leave: Callable[[], None],
    ) -> None:
        self.bucket = bucket
        self.nodes = nodes
        self.timings = timings
        self.driver_bytes = nodes * NODE_BYTES
        self.bytes = buffers.nbytes + self.driver_bytes
        self.arena = ""
        self.arena_bytes = 0
        self._buffers: StaticBuffers | None = buffers
        self._graph = graph
        self._lane = lane
        self._reads = reads
        self._addresses = addresses
        self._leave = leave

    def replay(self, batch: Batch, padding: Padding = Padding.VALUE) -> list[Outputs]:
        """See Recording."""
        buffers = self._buffers
        assert buffers is not None, "closed"
        buffers.inputs.write(batch, padding)
        try:
            self.launch()
        except RuntimeError as error:
            if is_lost(error, self._lane):
                raise DeviceLost(str(error)) from error
            raise
        return buffers.outputs.cut(batch)

    def launch(self) -> None:
        """Copy in, run, copy out, and wait; on the lane's stream, which is current."""
        buffers = self._buffers
        assert buffers is not None, "closed"
        started = 0.0 if self.timings.first_launch else perf_counter()
        buffers.copy_in()
        self._graph.replay()
        buffers.copy_out()
        self._lane.synchronize()
        if started:
            self.timings.first_launch = perf_counter() - started

    def addresses_unchanged(self) -> bool:
        """See Recording."""
        return self._addresses.unchanged()

    def close(self) -> None:
        """See Recording."""
        with CAPTURE_LOCK:
            if self._buffers is not None:
                self._graph.reset()
                self._buffers = None
                self._reads = ()
                self._leave()


class CudaBackend:
    """One GPU, with a stream for the lane and one for captures that live as long as it.

    Both come from the pool of high-priority streams: models draw their side streams from the other, which hands out the same few in turn.
    """

    def __init__(self, device: torch.device, max_nodes: int | None = None) -> None:
        self.device = str(device)
        self._max_nodes = max_nodes
        self._device = device
        torch.cuda.set_device(device)
        self._lane = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._capturing = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._pools = Pools(device)
        self._own_pools = 0

    def environment(self) -> Environment:
        """See Backend."""
        return describe(self._device, lowering="cuda graph")

    def memory(self) -> DeviceMemory:
        """See Backend."""
        return device_memory(self._device)

    def arena_bytes(self, arena: str) -> int:
        """See Backend."""
        with CAPTURE_LOCK:
            return self._pools.nbytes(arena)

    @contextmanager
    def lane(self) -> Iterator[None]:
        """See Backend."""
        torch.cuda.set_device(self._device)
        with torch.no_grad(), torch.cuda.stream(self._lane):
            yield

    @contextmanager
    def capturer(self) -> Iterator[None]:
        """See Backend. A thread's first matmul makes its cuBLAS handle, which can't be done inside a capture."""
        import_dynamo()
        torch.cuda.set_device(self._device)
        with torch.no_grad(), torch.cuda.stream(self._capturing):
            square = torch.ones(8, 8, device=self._device)
            square @ square
            self._capturing.synchronize()
            yield

    def run_eager(self, model: LoadedModel, variant: Variant, batch: Batch) -> list[Outputs]:
        """See Backend."""
        try:
            outputs = self._run_eager(model, variant, stack_inputs(model, batch))
        except Exception as error:
            raise eager_error(error, self._lane) from error
        return split_outputs(model, batch, outputs)

    def _run_eager(self, model: LoadedModel, variant: Variant, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self._wait_for_loaders(self._lane)
        given = {name: tensor.to(self._device, non_blocking=True) for name, tensor in inputs.items()}
        return {name: tensor.cpu() for name, tensor in model.forward(given, variant).items()}

    def record(self, model: LoadedModel, variant: Variant, bucket: Bucket, *, own_pool: bool = False) -> CudaRecording:
        """See Backend."""
        refuse_training(model.module)
        with CAPTURE_LOCK:
            try:
                return self._record(model, variant, bucket, own_pool=own_pool)
            except CaptureFailed as failed:
                meaning = capture_error(failed.cause, self._capturing, paths_of(model.module))
            except Exception as error:  # noqa: BLE001 - told as what it means
                meaning = capture_error(error, self._capturing, paths_of(model.module))
        raise meaning  # outside of the handlers, which would chain what was caught

    def _record(self, model: LoadedModel, variant: Variant, bucket: Bucket, *, own_pool: bool) -> CudaRecording:
        timings = CaptureTimings()
        started = perf_counter()
        self._wait_for_loaders(self._capturing)
        step, buffers, reads = self._warm_up(model, variant, bucket.as_dict())
        timings.warm_up = perf_counter() - started
        started = perf_counter()
        arena = self._next_own_pool() if own_pool else model.weights
        pool = self._pools.open(arena)
        try:
            graph = capture(step, self._capturing, pool)
        except CaptureFailed as failed:
            self._pools.abandon(arena, pool, spoiled=failed.spoiled)
            raise
        self._pools.join(arena, pool)
        leave = partial(self._pools.leave, arena, pool)
        timings.capture = perf_counter() - started
        started = perf_counter()
        try:
            nodes = count_nodes(graph)
            refuse_many_nodes(nodes, self._max_nodes)
            graph.instantiate()
            upload(graph, self._capturing)
            self._capturing.synchronize()
        except Exception:
            graph.reset()
            leave()
            raise
        timings.instantiate = perf_counter() - started
        recording = CudaRecording(bucket, buffers, graph, nodes, self._lane, reads, Addresses(model.module), timings, leave)
        if own_pool:
            recording.bytes += self._pools.nbytes(arena)
        else:
            recording.arena, recording.arena_bytes = arena, self._pools.nbytes(arena)
        return recording

    def _warm_up(self, model: LoadedModel, variant: Variant, sizes: dict[str, int]) -> tuple[Step, StaticBuffers, tuple[torch.Tensor, ...]]:
        """Run the step as often as it takes: what to capture, its buffers, and what it reads of the model.

        The first run builds what is built on the first call, and loads and tunes kernels for this very shape; the second is watched.
        """
        inputs = InputStaging(model.spec, sizes)
        inputs.write_safe()
        given = inputs.views(inputs.host.to(self._device))
        model.forward(dict(given), variant)
        with Watch(model, given) as watch, Calls(watch, self._device.type):
            results = model.forward(dict(given), variant)
        check_outputs(model, results, sizes)
        buffers = StaticBuffers(model, sizes, self._lane)
        buffers.device_in.copy_(inputs.host)
        given, targets = buffers.inputs.views(buffers.device_in), buffers.outputs.views(buffers.device_out)
        step: Step
        if model.spec.compile is Compile.INDUCTOR:
            program = record_program(model, variant, given, targets, sizes)
            step, reads = lower(program, model.spec.compile), program.arguments
            step()
        else:
            step, reads = partial(_run, model, variant, given, targets), watch.reads()
            _deliver(results, targets)
        self._capturing.synchronize()
        return step, buffers, reads

    def _wait_for_loaders(self, stream: torch.cuda.Stream) -> None:
        """Weights are loaded, and reloaded, on the default stream."""
        stream.wait_stream(torch.cuda.default_stream(self._device))

    def _next_own_pool(self) -> str:
        self._own_pools += 1
        return f"own {self._own_pools}"

    def close(self) -> None:
        """See Backend."""
        self._lane.synchronize()
        self._capturing.synchronize()


def _run(model: LoadedModel, variant: Variant, inputs: Mapping[str, torch.Tensor], targets: Mapping[str, torch.Tensor]) -> None:
    _deliver(model.forward(dict(inputs), variant), targets)


def _deliver(results: Mapping[str, torch.Tensor], targets: Mapping[str, torch.Tensor]) -> None:
    """Bring results where they are expected. They can't stay where the model put them: the arena's other graphs write there."""
    for name, result in results.items():
        targets[name].copy_(result)
