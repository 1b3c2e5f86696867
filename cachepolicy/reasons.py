"""The one registry of reasons.

`FallbackReason` says why a request ran eagerly, `RefusalReason` why a graph may not exist. Each carries an explanation for the
reader of a trace and a hint for whoever can change something. The proto enums, the docs and the metrics are checked against it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class _Reason(StrEnum):
    """A string enum whose members carry `explanation` and `hint`."""

    explanation: str
    hint: str

    def __new__(cls, value: str, explanation: str, hint: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.explanation = explanation
        member.hint = hint
        return member


class FallbackReason(_Reason):
    """Why this request ran eagerly."""

    DISABLED = (
        "disabled",
        "Graphs are switched off for this model or variant.",
        "Switch them on with `graphcache mode MODEL auto`, or see who switched them off in `graphcache explain`.",
    )
    NO_BUCKET = (
        "no_bucket",
        "No bucket of the ladder covers this shape.",
        "Raise the axis' max, or set `above: split` so that large requests are served in parts.",
    )
    NOT_CAPTURED = (
        "not_captured",
        "The bucket has no graph, and its traffic has not paid for a capture so far.",
        "Repeat the shape, or force the capture with `graphcache warm`.",
    )
    CAPTURE_PENDING = (
        "capture_pending",
        "The bucket's graph is queued, being captured, or being verified.",
        "Nothing to do: the next requests will be replayed.",
    )
    REFUSED = (
        "refused",
        "A graph of this bucket may not exist; the detail names the refusal.",
        "Run `graphcache doctor MODEL` to see the operation and the source line behind it.",
    )
    EVICTED = (
        "evicted",
        "The bucket's graph was evicted to keep the byte budget.",
        "Raise the budget with `graphcache budget`, or pin the bucket.",
    )
    EXACT_ONLY = (
        "exact_only",
        "Padding is unsafe for this model, and the request does not fill a bucket exactly.",
        "Add this exact size to the axis' buckets, or make rows independent of each other.",
    )
    STALE = (
        "stale",
        "Weights or environment changed after the graph was captured.",
        "Undo the change that the detail names, or reload the model: its graphs are then captured under what is in force.",
    )
    GRAPH_BUSY = (
        "graph_busy",
        "The graph was in use elsewhere, and waiting would have cost more than an eager run.",
        "Rare; if it persists, lower the number of concurrent lanes.",
    )
    REPLAY_FAILED = (
        "replay_failed",
        "The replay raised; the graph was dropped and the request ran eagerly.",
        "See the worker's log for the error; the bucket is captured anew.",
    )


class RefusalReason(_Reason):
    """Why a graph may not exist."""

    SYNC = (
        "sync",
        "The step reads a device value on the host or waits for the device.",
        "Keep the value on the device: replace `.item()` and Python branches by torch.where or masks.",
    )
    CPU_TENSOR = (
        "cpu_tensor",
        "The step uses a tensor in host memory that a graph would read at a frozen address.",
        "Create the tensor on the model's device, or register it as a buffer.",
    )
    DATA_DEPENDENT = (
        "data_dependent",
        "The size of an intermediate tensor depends on values.",
        "Replace nonzero, unique and boolean indexing by masked operations of a fixed size.",
    )
    UNJOINED_STREAM = (
        "unjoined_stream",
        "Work was put on a side stream that the main stream never waits for.",
        "Join it with `current_stream().wait_stream(side)` before returning.",
    )
    DEFAULT_STREAM = (
        "default_stream",
        "Work ran on the default stream and was not recorded.",
        "Launch on `torch.cuda.current_stream()`.",
    )
    INPUT_MUTATION = (
        "input_mutation",
        "The step writes to its inputs.",
        "Clone the input before changing it.",
    )
    PARAMETER_MUTATION = (
        "parameter_mutation",
        "The step writes to its parameters.",
        "Apply the change once at load.",
    )
    STATEFUL = (
        "stateful",
        "The model changes itself from call to call.",
        "Return what is remembered and take it as an input, or declare a buffer as state addressed by slots.",
    )
    NONDETERMINISTIC = (
        "nondeterministic",
        "Two eager runs of one input differ.",
        "Switch randomness off in eval mode.",
    )
    RNG = (
        "rng",
        "The step draws random numbers from a generator that a graph would freeze.",
        "Use the default generator, or pass the noise in.",
    )
    TRAINING_MODE = (
        "training_mode",
        "A submodule is in training mode.",
        "Call `.eval()` on the whole model.",
    )
    ROW_DEPENDENT = (
        "row_dependent",
        "A row's answer depends on the other rows, so padding changes it.",
        "Remove the batch statistic, or serve exact sizes.",
    )
    SHAPE_DEPENDENT = (
        "shape_dependent",
        "The answer depends on the padded size itself.",
        "Pass the real length as an input (`fill: length`) and use it instead of the tensor's size.",
    )
    OUTPUT_SHAPE = (
        "output_shape",
        "An output's shape does not follow the declared axes.",
        "Declare the output's axes as they are, or return a fixed size.",
    )
    MISMATCH = (
        "mismatch",
        "The replay's values differ from eager's beyond the tolerance.",
        "Run `graphcache doctor MODEL`; if the difference is rounding, set `tolerance`.",
    )
    OUT_OF_MEMORY = (
        "out_of_memory",
        "The device had no memory for the capture.",
        "Lower the budget or the bucket's size.",
    )
    MEMORY_BUDGET = (
        "memory_budget",
        "The graph does not fit the byte budget.",
        "Raise the budget, or unpin other graphs.",
    )
    UNPROFITABLE = (
        "unprofitable",
        "The padded replay is not faster than the exact eager run.",
        "Nothing to do, or choose buckets nearer to the traffic.",
    )
    UNSUPPORTED_MODE = (
        "unsupported_mode",
        "The model asks for a graph mode that this build does not have.",
        "Use none, full or auto.",
    )
    CAPTURE_ERROR = (
        "capture_error",
        "The capture raised; the detail has the model's message.",
        "Run `graphcache doctor MODEL`.",
    )


def hint_for(reason: FallbackReason, detail: str) -> str:
    """What the reader can do: for a refusal, what its own reason says. A refusal's detail begins with that reason's name."""
    if reason is FallbackReason.REFUSED:
        name = detail.partition(":")[0]
        return next((refusal.hint for refusal in RefusalReason if refusal == name), reason.hint)
    return reason.hint
