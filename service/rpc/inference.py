"""The Open Inference Protocol over the worker."""
# ruff: noqa: N802 (gRPC chooses the names of methods)

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from math import inf

from service import __version__
from service.choices import Rows
from service.errors import BadInput, NotSupported, UnknownModel
from service.messages import InferReply, InferRequest, ModelState, ModelStats, ModelStatus, Parameter
from service.models.spec import InputSpec, ModelSpec, OutputSpec
from service.pb.inference import grpc_service_pb2 as pb
from service.pb.inference import model_config_pb2 as config_pb
from service.pb.inference.grpc_service_pb2_grpc import GRPCInferenceServiceServicer
from service.rpc.codec import add_input, deadline_of, host_tensor, parameters_of, raw_bytes, typed_tensor
from service.rpc.health import OVERALL, HealthState
from service.rpc.ports import Inference
from service.rpc.status import Context, answers_errors, status_of
from service.rpc.streams import Streams
from service.rpc.tracing import blame, traces
from service.tensors import Datatype, HostTensor

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
UNARY, STREAM = f"{SERVICE}/ModelInfer", f"{SERVICE}/ModelStreamInfer"
PLATFORM = "graphcache"
EXTENSIONS = ("model_configuration", "model_repository(index)", "statistics")

# Parameters of a tensor that change what it means, so that ignoring them would give a wrong answer.
_UNSUPPORTED = frozenset({"shared_memory_region", "classification"})
_WANT_FINAL = "triton_enable_empty_final_response"
_IS_FINAL = "triton_final_response"
# Parameters of a request that are the protocol's own, not the model's: what its clients add to any request.
_PROTOCOL = frozenset({"timeout", "priority", "sequence_id", "sequence_start", "sequence_end", "binary_data_output", "headers"})
_PROTOCOL_PREFIX = "triton_"

_DATA_TYPES = {datatype: config_pb.DataType.Value(f"TYPE_{datatype}") for datatype in Datatype}


class InferenceServicer(GRPCInferenceServiceServicer):
    """Thin: each call is one call of the worker between two conversions."""

    def __init__(self, worker: Inference, health: HealthState, streams: Streams) -> None:
        self._worker = worker
        self._health = health
        self._streams = streams
        self.tracer = streams.tracer

    @answers_errors
    async def ServerLive(self, request: pb.ServerLiveRequest, context: Context) -> pb.ServerLiveResponse:
        """Whoever gets an answer knows that the process lives."""
        return pb.ServerLiveResponse(live=True)

    @answers_errors
    async def ServerReady(self, request: pb.ServerReadyRequest, context: Context) -> pb.ServerReadyResponse:
        """Whether requests may be sent."""
        return pb.ServerReadyResponse(ready=bool(self._health.serving(OVERALL)))

    @answers_errors
    async def ModelReady(self, request: pb.ModelReadyRequest, context: Context) -> pb.ModelReadyResponse:
        """Whether this version, or any version where none is named, is up."""
        found = self._statuses(request.name, request.version)
        return pb.ModelReadyResponse(ready=any(status.state is ModelState.READY for status in found))

    @answers_errors
    async def ServerMetadata(self, request: pb.ServerMetadataRequest, context: Context) -> pb.ServerMetadataResponse:
        """Name and version of this program."""
        return pb.ServerMetadataResponse(name="graphcache", version=__version__, extensions=EXTENSIONS)

    @answers_errors
    async def ModelMetadata(self, request: pb.ModelMetadataRequest, context: Context) -> pb.ModelMetadataResponse:
        """Inputs and outputs as clients see them."""
        spec = self._worker.spec(request.name, request.version)
        versions = [status.version for status in self._statuses(spec.name, request.version) if status.state is ModelState.READY]
        return pb.ModelMetadataResponse(
            name=spec.name,
            versions=versions,
            platform=PLATFORM,
            inputs=[_metadata(tensor) for tensor in spec.requested_inputs],
            outputs=[_metadata(tensor) for tensor in spec.outputs],
        )

    @traces(UNARY)
    @answers_errors
    async def ModelInfer(self, request: pb.ModelInferRequest, context: Context) -> pb.ModelInferResponse:
        """One inference."""
        reply = await self._worker.infer(infer_request(request, context.time_remaining()))
        return infer_response(reply, request.id)

    async def ModelStreamInfer(  # type: ignore[override] # a handler may write to the context instead of yielding
        self, request_iterator: AsyncIterator[pb.ModelInferRequest], context: Context
    ) -> None:
        """Many inferences in flight; one that fails is answered by its message."""

        async def answer(request: pb.ModelInferRequest) -> pb.ModelStreamInferResponse:
            try:
                plain = infer_request(request, context.time_remaining())
                response = infer_response(await self._worker.infer(plain), request.id)
            except Exception as error:  # noqa: BLE001 - goes to the client by the table of statuses
                status = status_of(error)
                blame(status.code.name, error)
                failed = pb.ModelInferResponse(model_name=request.model_name, model_version=request.model_version, id=request.id)
                return pb.ModelStreamInferResponse(error_message=status.message, infer_response=failed)
            if _WANT_FINAL in request.parameters and request.parameters[_WANT_FINAL].bool_param:
                response.parameters[_IS_FINAL].bool_param = True
            return pb.ModelStreamInferResponse(infer_response=response)

        await self._streams.serve(STREAM, request_iterator, answer, context)

    @answers_errors
    async def ModelConfig(self, request: pb.ModelConfigRequest, context: Context) -> pb.ModelConfigResponse:
        """The configuration as clients of the protocol read it."""
        return pb.ModelConfigResponse(config=model_config(self._worker.spec(request.name, request.version)))

    @answers_errors
    async def ModelStatistics(self, request: pb.ModelStatisticsRequest, context: Context) -> pb.ModelStatisticsResponse:
        """Counters since each model was loaded."""
        stats = self._worker.statistics(request.name, request.version)
        return pb.ModelStatisticsResponse(model_stats=[_statistics(one) for one in stats])

    @answers_errors
    async def RepositoryIndex(self, request: pb.RepositoryIndexRequest, context: Context) -> pb.RepositoryIndexResponse:
        """Every known version of every model."""
        statuses = [status for status in self._worker.models() if status.state is ModelState.READY or not request.ready]
        index = pb.RepositoryIndexResponse.ModelIndex
        return pb.RepositoryIndexResponse(
            models=[index(name=s.name, version=s.version, state=str(s.state), reason=s.reason) for s in statuses]
        )

    @answers_errors
    async def RepositoryModelLoad(self, request: pb.RepositoryModelLoadRequest, context: Context) -> pb.RepositoryModelLoadResponse:
        """Acting on models is for the admin port."""
        raise NotSupported("models are loaded on the admin port, by graphcache.v1.AdminService/LoadModel")

    @answers_errors
    async def RepositoryModelUnload(self, request: pb.RepositoryModelUnloadRequest, context: Context) -> pb.RepositoryModelUnloadResponse:
        """Acting on models is for the admin port."""
        raise NotSupported("models are unloaded on the admin port, by graphcache.v1.AdminService/UnloadModel")

    def _statuses(self, name: str, version: str) -> list[ModelStatus]:
        found = [status for status in self._worker.models() if status.name == name and version in ("", status.version)]
        if not found:
            raise UnknownModel(f"model {name!r} has no version {version!r}" if version else f"no model {name!r}")
        return found


def infer_request(message: pb.ModelInferRequest, time_remaining: float | None) -> InferRequest:
    """A request off the wire; `time_remaining` is the call's own deadline in seconds. Raises BadInput."""
    parameters = parameters_of(message.parameters)
    if parameters.get("sequence_id") not in (None, 0, ""):  # clients send 0 for none; another answers from a state that does not exist here
        raise BadInput("", "parameter 'sequence_id': sequences are not supported")
    return InferRequest(
        model=message.model_name,
        inputs=_inputs(message),
        version=message.model_version,
        parameters={name: value for name, value in parameters.items() if not _is_protocol(name)},
        outputs=tuple([_output_name(output) for output in message.outputs]) if message.outputs else (),
        request_id=message.id,
        deadline=deadline_of(time_remaining, _timeout_us(parameters)),
    )


def infer_response(reply: InferReply, request_id: str) -> pb.ModelInferResponse:
    """An answer for the wire, its values in raw_output_contents."""
    message = pb.ModelInferResponse(model_name=reply.model, model_version=reply.version, id=request_id)
    for name, tensor in reply.outputs.items():
        message.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_output_contents.append(raw_bytes(tensor))
    outcome = reply.outcome
    message.parameters["path"].string_param = outcome.path
    if outcome.reason is not None:
        message.parameters["fallback_reason"].string_param = outcome.reason
    if outcome.bucket is not None:
        message.parameters["bucket"].string_param = str(outcome.bucket)
    return message


def model_config(spec: ModelSpec) -> config_pb.ModelConfig:
    """A model's configuration; dimensions go without the batch where every tensor begins with it, as the protocol has it."""
    axis = spec.axis(spec.batch_axis)
    tensors: tuple[InputSpec | OutputSpec, ...] = (*spec.requested_inputs, *spec.outputs)
    batched = axis is not None and all(tensor.shape[:1] == (axis.name,) for tensor in tensors)
    skip = 1 if batched else 0
    config = config_pb.ModelConfig(
        name=spec.name,
        platform=PLATFORM,
        backend=PLATFORM,
        max_batch_size=axis.max if axis is not None and batched else 0,
        model_transaction_policy=config_pb.ModelTransactionPolicy(decoupled=False),
    )
    for tensor in spec.requested_inputs:
        config.input.add(name=tensor.name, data_type=_DATA_TYPES[tensor.datatype], dims=_dims(tensor)[skip:])
    for output in spec.outputs:
        config.output.add(name=output.name, data_type=_DATA_TYPES[output.datatype], dims=_dims(output)[skip:])
    if batched and spec.rows is Rows.INDEPENDENT:
        config.dynamic_batching.max_queue_delay_microseconds = round(spec.max_wait_s * 1e6)
    return config


def _inputs(message: pb.ModelInferRequest) -> dict[str, HostTensor]:
    inputs: dict[str, HostTensor] = {}
    raw, tensors = message.raw_input_contents[:], message.inputs[:]  # lists: iterating over what protobuf gives costs far more
    for tensor in tensors:
        if tensor.parameters:
            _refuse_unsupported(f"input {tensor.name!r}", tensor.parameters)
    if not raw:
        for tensor in tensors:
            add_input(inputs, tensor.name, typed_tensor(tensor.name, tensor.datatype, tensor.shape[:], tensor.contents))
        return inputs
    if len(raw) != len(tensors):
        names = ", ".join(repr(tensor.name) for tensor in tensors)
        raise BadInput("", f"raw_input_contents has {len(raw)} elements for {len(tensors)} inputs ({names})")
    for tensor, data in zip(tensors, raw, strict=True):
        if tensor.HasField("contents"):
            raise BadInput(tensor.name, "has contents although the request has raw_input_contents")
        add_input(inputs, tensor.name, host_tensor(tensor.name, tensor.datatype, tensor.shape[:], data))
    return inputs


def _output_name(output: pb.ModelInferRequest.InferRequestedOutputTensor) -> str:
    _refuse_unsupported(f"output {output.name!r}", output.parameters)
    return output.name


def _refuse_unsupported(what: str, parameters: Mapping[str, pb.InferParameter]) -> None:
    for parameter in _UNSUPPORTED.intersection(parameters):
        raise BadInput("", f"{what}: parameter {parameter!r} is not supported")


def _is_protocol(parameter: str) -> bool:
    return parameter in _PROTOCOL or parameter.startswith(_PROTOCOL_PREFIX)


def _timeout_us(parameters: dict[str, Parameter]) -> float | None:
    """The protocol's `timeout`; 0 means none."""
    timeout = parameters.get("timeout")
    if timeout is None:
        return None
    if isinstance(timeout, (bool, str)) or not 0 <= timeout < inf:
        raise BadInput("", f"parameter 'timeout': {timeout!r} is not a number of microseconds")
    return timeout or None


def _metadata(tensor: InputSpec | OutputSpec) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(name=tensor.name, datatype=tensor.datatype, shape=_dims(tensor))


def _dims(tensor: InputSpec | OutputSpec) -> list[int]:
    return [size if isinstance(size, int) else -1 for size in tensor.shape]


def _statistics(stats: ModelStats) -> pb.ModelStatistics:
    served = stats.success_count

    def duration(count: int, ns: int) -> pb.StatisticDuration:
        return pb.StatisticDuration(count=count, ns=ns)

    return pb.ModelStatistics(
        name=stats.model,
        version=stats.version,
        last_inference=stats.last_inference_ms,
        inference_count=stats.inference_count,
        execution_count=stats.execution_count,
        inference_stats=pb.InferStatistics(
            success=duration(served, stats.success_ns),
            fail=duration(stats.fail_count, stats.fail_ns),
            queue=duration(served, stats.queue_ns),
            compute_input=duration(served, stats.compute_input_ns),
            compute_infer=duration(served, stats.compute_infer_ns),
            compute_output=duration(served, stats.compute_output_ns),
        ),
        batch_stats=[pb.InferBatchStatistics(batch_size=size, compute_infer=duration(count, ns)) for size, count, ns in stats.batch_sizes],
    )
