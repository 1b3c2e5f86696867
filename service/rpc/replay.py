"""ReplayService over the worker: inference that says how it was served."""
# ruff: noqa: N802 (gRPC chooses the names of methods)

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import lru_cache

from cachepolicy.buckets import Bucket
from cachepolicy.reasons import FallbackReason, RefusalReason
from service.messages import GraphMode, InferReply, InferRequest, ModeState, Outcome, Path
from service.models.spec import InputSpec, ModelSpec, OutputSpec
from service.pb.graphcache.v1 import replay_pb2 as pb
from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceServicer
from service.rpc.codec import add_input, deadline_of, host_tensor, parameters_of, raw_bytes, wire_enum
from service.rpc.ports import Inference
from service.rpc.status import Context, answers_errors, status_of
from service.rpc.streams import Streams
from service.rpc.tracing import blame, traces
from service.tensors import HostTensor

SERVICE = pb.DESCRIPTOR.services_by_name["ReplayService"].full_name
UNARY, STREAM = f"{SERVICE}/Replay", f"{SERVICE}/ReplayStream"

PATHS: dict[Path, pb.Path] = wire_enum(Path, pb.Path, "PATH")
FALLBACKS: dict[FallbackReason, pb.FallbackReason] = wire_enum(FallbackReason, pb.FallbackReason, "FALLBACK_REASON")
REFUSALS: dict[str, pb.RefusalReason] = {
    str(reason): number for reason, number in wire_enum(RefusalReason, pb.RefusalReason, "REFUSAL_REASON").items()
}
MODES: dict[GraphMode, pb.GraphMode] = wire_enum(GraphMode, pb.GraphMode, "GRAPH_MODE")


class ReplayServicer(ReplayServiceServicer):
    """Thin: each call is one call of the worker between two conversions."""

    def __init__(self, worker: Inference, streams: Streams) -> None:
        self._worker = worker
        self._streams = streams
        self.tracer = streams.tracer

    @traces(UNARY)
    @answers_errors
    async def Replay(self, request: pb.ReplayRequest, context: Context) -> pb.ReplayResponse:
        """One inference."""
        reply = await self._worker.infer(replay_request(request, context.time_remaining()))
        return replay_response(reply, request.id)

    async def ReplayStream(  # type: ignore[override] # a handler may write to the context instead of yielding
        self, request_iterator: AsyncIterator[pb.ReplayStreamRequest], context: Context
    ) -> None:
        """Many inferences in flight; one that fails is answered by an error with the status that the unary call would have."""

        async def answer(message: pb.ReplayStreamRequest) -> pb.ReplayStreamResponse:
            request = message.request
            try:
                reply = await self._worker.infer(replay_request(request, context.time_remaining()))
                return pb.ReplayStreamResponse(id=request.id, response=replay_response(reply, request.id))
            except Exception as error:  # noqa: BLE001 - goes to the client by the table of statuses
                status = status_of(error)
                blame(status.code.name, error)
                failed = pb.ReplayError(code=status.code.value[0], message=status.message, retry_after_ms=status.retry_after_ms)
                return pb.ReplayStreamResponse(id=request.id, error=failed)

        await self._streams.serve(STREAM, request_iterator, answer, context)

    @answers_errors
    async def DescribeModel(self, request: pb.DescribeModelRequest, context: Context) -> pb.DescribeModelResponse:
        """What a model takes and gives, by named axes."""
        return description(self._worker.spec(request.model, request.version))


def replay_request(message: pb.ReplayRequest, time_remaining: float | None) -> InferRequest:
    """A request off the wire; `time_remaining` is the call's own deadline in seconds. Raises BadInput."""
    inputs: dict[str, HostTensor] = {}
    for tensor in message.inputs[:]:  # a list: iterating over what protobuf gives costs far more
        add_input(inputs, tensor.name, host_tensor(tensor.name, tensor.datatype, tensor.shape[:], tensor.data))
    timeout_us = message.timeout_us if message.HasField("timeout_us") else None
    return InferRequest(
        model=message.model,
        inputs=inputs,
        version=message.version,
        parameters=parameters_of(message.parameters),
        outputs=tuple(message.outputs[:]),
        request_id=message.id,
        deadline=deadline_of(time_remaining, timeout_us),
    )


def replay_response(reply: InferReply, request_id: str) -> pb.ReplayResponse:
    """An answer for the wire."""
    message = pb.ReplayResponse(model=reply.model, version=reply.version, id=request_id)
    for name, tensor in reply.outputs.items():
        message.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape, data=raw_bytes(tensor))
    _write_outcome(message.outcome, reply.outcome)
    return message


def refusal_of(reason: FallbackReason | None, detail: str) -> pb.RefusalReason:
    """The refusal behind a fallback: the detail begins with its name."""
    name = detail.partition(":")[0] if reason is FallbackReason.REFUSED else ""
    return REFUSALS.get(name, pb.REFUSAL_REASON_UNSPECIFIED)


def fallback_of(reason: FallbackReason | None) -> pb.FallbackReason:
    """The wire's name of a reason."""
    return pb.FALLBACK_REASON_UNSPECIFIED if reason is None else FALLBACKS[reason]


def sizes_of(bucket: Bucket | None) -> dict[str, int]:
    """Axis to size; empty where there is no bucket."""
    return {} if bucket is None else bucket.as_dict()


@lru_cache(maxsize=256)  # the same few states are in every reply; messages copy it, nobody writes to it
def mode_state(state: ModeState) -> pb.ModeState:
    """The mode in force, for the wire."""
    return pb.ModeState(mode=MODES[state.mode], origin=state.origin, since=state.since, until=state.until)


def description(spec: ModelSpec) -> pb.DescribeModelResponse:
    """A model's spec, as far as a client needs it."""
    return pb.DescribeModelResponse(
        model=spec.name,
        version=spec.version,
        inputs=[_describe(tensor) for tensor in spec.requested_inputs],
        outputs=[_describe(tensor) for tensor in spec.outputs],
        axes=[pb.AxisDescription(name=axis.name, max=axis.max) for axis in spec.axes],
        batch_axis=spec.batch_axis,
        phase=spec.phase,
        variants=[pb.VariantDescription(name=name, values=values) for name, values in spec.variants],
        state=[pb.StateDescription(index_input=state.index_input, slots=state.slots) for state in spec.state],
    )


def _describe(tensor: InputSpec | OutputSpec) -> pb.TensorDescription:
    message = pb.TensorDescription(name=tensor.name, datatype=tensor.datatype, shape=[str(size) for size in tensor.shape])
    if isinstance(tensor, InputSpec) and tensor.range is not None:
        message.range.low, message.range.high = tensor.range
    return message


def _write_outcome(message: pb.Outcome, outcome: Outcome) -> None:
    message.path = PATHS[outcome.path]
    message.fallback_reason = fallback_of(outcome.reason)
    message.refusal_reason = refusal_of(outcome.reason, outcome.detail)
    message.detail = outcome.detail
    message.bucket.update(sizes_of(outcome.bucket))
    message.padding_ratio = outcome.padding_ratio
    message.batch_rows = outcome.batch_rows
    message.parts = outcome.parts
    message.queue_s = outcome.queue_s
    message.execute_s = outcome.execute_s
    message.graph_key = outcome.key
    message.variant.update(outcome.variant)
    if outcome.mode is not None:
        message.mode.CopyFrom(mode_state(outcome.mode))
