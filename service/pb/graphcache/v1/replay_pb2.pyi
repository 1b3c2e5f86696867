from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Path(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PATH_UNSPECIFIED: _ClassVar[Path]
    PATH_REPLAY: _ClassVar[Path]
    PATH_EAGER: _ClassVar[Path]

class FallbackReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FALLBACK_REASON_UNSPECIFIED: _ClassVar[FallbackReason]
    FALLBACK_REASON_DISABLED: _ClassVar[FallbackReason]
    FALLBACK_REASON_NO_BUCKET: _ClassVar[FallbackReason]
    FALLBACK_REASON_NOT_CAPTURED: _ClassVar[FallbackReason]
    FALLBACK_REASON_CAPTURE_PENDING: _ClassVar[FallbackReason]
    FALLBACK_REASON_REFUSED: _ClassVar[FallbackReason]
    FALLBACK_REASON_EVICTED: _ClassVar[FallbackReason]
    FALLBACK_REASON_EXACT_ONLY: _ClassVar[FallbackReason]
    FALLBACK_REASON_STALE: _ClassVar[FallbackReason]
    FALLBACK_REASON_GRAPH_BUSY: _ClassVar[FallbackReason]
    FALLBACK_REASON_REPLAY_FAILED: _ClassVar[FallbackReason]

class RefusalReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFUSAL_REASON_UNSPECIFIED: _ClassVar[RefusalReason]
    REFUSAL_REASON_SYNC: _ClassVar[RefusalReason]
    REFUSAL_REASON_CPU_TENSOR: _ClassVar[RefusalReason]
    REFUSAL_REASON_DATA_DEPENDENT: _ClassVar[RefusalReason]
    REFUSAL_REASON_UNJOINED_STREAM: _ClassVar[RefusalReason]
    REFUSAL_REASON_DEFAULT_STREAM: _ClassVar[RefusalReason]
    REFUSAL_REASON_INPUT_MUTATION: _ClassVar[RefusalReason]
    REFUSAL_REASON_PARAMETER_MUTATION: _ClassVar[RefusalReason]
    REFUSAL_REASON_STATEFUL: _ClassVar[RefusalReason]
    REFUSAL_REASON_NONDETERMINISTIC: _ClassVar[RefusalReason]
    REFUSAL_REASON_RNG: _ClassVar[RefusalReason]
    REFUSAL_REASON_TRAINING_MODE: _ClassVar[RefusalReason]
    REFUSAL_REASON_ROW_DEPENDENT: _ClassVar[RefusalReason]
    REFUSAL_REASON_SHAPE_DEPENDENT: _ClassVar[RefusalReason]
    REFUSAL_REASON_OUTPUT_SHAPE: _ClassVar[RefusalReason]
    REFUSAL_REASON_MISMATCH: _ClassVar[RefusalReason]
    REFUSAL_REASON_OUT_OF_MEMORY: _ClassVar[RefusalReason]
    REFUSAL_REASON_MEMORY_BUDGET: _ClassVar[RefusalReason]
    REFUSAL_REASON_UNPROFITABLE: _ClassVar[RefusalReason]
    REFUSAL_REASON_UNSUPPORTED_MODE: _ClassVar[RefusalReason]
    REFUSAL_REASON_CAPTURE_ERROR: _ClassVar[RefusalReason]

class GraphMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GRAPH_MODE_UNSPECIFIED: _ClassVar[GraphMode]
    GRAPH_MODE_NONE: _ClassVar[GraphMode]
    GRAPH_MODE_FULL: _ClassVar[GraphMode]
    GRAPH_MODE_AUTO: _ClassVar[GraphMode]
PATH_UNSPECIFIED: Path
PATH_REPLAY: Path
PATH_EAGER: Path
FALLBACK_REASON_UNSPECIFIED: FallbackReason
FALLBACK_REASON_DISABLED: FallbackReason
FALLBACK_REASON_NO_BUCKET: FallbackReason
FALLBACK_REASON_NOT_CAPTURED: FallbackReason
FALLBACK_REASON_CAPTURE_PENDING: FallbackReason
FALLBACK_REASON_REFUSED: FallbackReason
FALLBACK_REASON_EVICTED: FallbackReason
FALLBACK_REASON_EXACT_ONLY: FallbackReason
FALLBACK_REASON_STALE: FallbackReason
FALLBACK_REASON_GRAPH_BUSY: FallbackReason
FALLBACK_REASON_REPLAY_FAILED: FallbackReason
REFUSAL_REASON_UNSPECIFIED: RefusalReason
REFUSAL_REASON_SYNC: RefusalReason
REFUSAL_REASON_CPU_TENSOR: RefusalReason
REFUSAL_REASON_DATA_DEPENDENT: RefusalReason
REFUSAL_REASON_UNJOINED_STREAM: RefusalReason
REFUSAL_REASON_DEFAULT_STREAM: RefusalReason
REFUSAL_REASON_INPUT_MUTATION: RefusalReason
REFUSAL_REASON_PARAMETER_MUTATION: RefusalReason
REFUSAL_REASON_STATEFUL: RefusalReason
REFUSAL_REASON_NONDETERMINISTIC: RefusalReason
REFUSAL_REASON_RNG: RefusalReason
REFUSAL_REASON_TRAINING_MODE: RefusalReason
REFUSAL_REASON_ROW_DEPENDENT: RefusalReason
REFUSAL_REASON_SHAPE_DEPENDENT: RefusalReason
REFUSAL_REASON_OUTPUT_SHAPE: RefusalReason
REFUSAL_REASON_MISMATCH: RefusalReason
REFUSAL_REASON_OUT_OF_MEMORY: RefusalReason
REFUSAL_REASON_MEMORY_BUDGET: RefusalReason
REFUSAL_REASON_UNPROFITABLE: RefusalReason
REFUSAL_REASON_UNSUPPORTED_MODE: RefusalReason
REFUSAL_REASON_CAPTURE_ERROR: RefusalReason
GRAPH_MODE_UNSPECIFIED: GraphMode
GRAPH_MODE_NONE: GraphMode
GRAPH_MODE_FULL: GraphMode
GRAPH_MODE_AUTO: GraphMode

class ModeState(_message.Message):
    __slots__ = ("mode", "origin", "since", "until")
    MODE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    mode: GraphMode
    origin: str
    since: float
    until: float
    def __init__(self, mode: _Optional[_Union[GraphMode, str]] = ..., origin: _Optional[str] = ..., since: _Optional[float] = ..., until: _Optional[float] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "datatype", "shape", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATATYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    datatype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, name: _Optional[str] = ..., datatype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Parameter(_message.Message):
    __slots__ = ("bool_value", "int_value", "double_value", "string_value")
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_VALUE_FIELD_NUMBER: _ClassVar[int]
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    bool_value: bool
    int_value: int
    double_value: float
    string_value: str
    def __init__(self, bool_value: bool = ..., int_value: _Optional[int] = ..., double_value: _Optional[float] = ..., string_value: _Optional[str] = ...) -> None: ...

class ReplayRequest(_message.Message):
    __slots__ = ("model", "version", "id", "inputs", "outputs", "parameters", "timeout_us")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Parameter
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Parameter, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_US_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    id: str
    inputs: _containers.RepeatedCompositeFieldContainer[Tensor]
    outputs: _containers.RepeatedScalarFieldContainer[str]
    parameters: _containers.MessageMap[str, Parameter]
    timeout_us: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., id: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., outputs: _Optional[_Iterable[str]] = ..., parameters: _Optional[_Mapping[str, Parameter]] = ..., timeout_us: _Optional[int] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("path", "fallback_reason", "refusal_reason", "detail", "bucket", "padding_ratio", "batch_rows", "parts", "queue_s", "execute_s", "graph_key", "variant", "mode")
    class BucketEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class VariantEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PATH_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_REASON_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    PADDING_RATIO_FIELD_NUMBER: _ClassVar[int]
    BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    EXECUTE_S_FIELD_NUMBER: _ClassVar[int]
    GRAPH_KEY_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    path: Path
    fallback_reason: FallbackReason
    refusal_reason: RefusalReason
    detail: str
    bucket: _containers.ScalarMap[str, int]
    padding_ratio: float
    batch_rows: int
    parts: int
    queue_s: float
    execute_s: float
    graph_key: str
    variant: _containers.ScalarMap[str, str]
    mode: ModeState
    def __init__(self, path: _Optional[_Union[Path, str]] = ..., fallback_reason: _Optional[_Union[FallbackReason, str]] = ..., refusal_reason: _Optional[_Union[RefusalReason, str]] = ..., detail: _Optional[str] = ..., bucket: _Optional[_Mapping[str, int]] = ..., padding_ratio: _Optional[float] = ..., batch_rows: _Optional[int] = ..., parts: _Optional[int] = ..., queue_s: _Optional[float] = ..., execute_s: _Optional[float] = ..., graph_key: _Optional[str] = ..., variant: _Optional[_Mapping[str, str]] = ..., mode: _Optional[_Union[ModeState, _Mapping]] = ...) -> None: ...

class ReplayResponse(_message.Message):
    __slots__ = ("model", "version", "id", "outputs", "outcome")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    id: str
    outputs: _containers.RepeatedCompositeFieldContainer[Tensor]
    outcome: Outcome
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., id: _Optional[str] = ..., outputs: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ...) -> None: ...

class ReplayStreamRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: ReplayRequest
    def __init__(self, request: _Optional[_Union[ReplayRequest, _Mapping]] = ...) -> None: ...

class ReplayError(_message.Message):
    __slots__ = ("code", "message", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    retry_after_ms: int
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class ReplayStreamResponse(_message.Message):
    __slots__ = ("id", "response", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    response: ReplayResponse
    error: ReplayError
    def __init__(self, id: _Optional[str] = ..., response: _Optional[_Union[ReplayResponse, _Mapping]] = ..., error: _Optional[_Union[ReplayError, _Mapping]] = ...) -> None: ...

class DescribeModelRequest(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class ValueRange(_message.Message):
    __slots__ = ("low", "high")
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    low: int
    high: int
    def __init__(self, low: _Optional[int] = ..., high: _Optional[int] = ...) -> None: ...

class TensorDescription(_message.Message):
    __slots__ = ("name", "datatype", "shape", "range")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATATYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    datatype: str
    shape: _containers.RepeatedScalarFieldContainer[str]
    range: ValueRange
    def __init__(self, name: _Optional[str] = ..., datatype: _Optional[str] = ..., shape: _Optional[_Iterable[str]] = ..., range: _Optional[_Union[ValueRange, _Mapping]] = ...) -> None: ...

class AxisDescription(_message.Message):
    __slots__ = ("name", "max")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    name: str
    max: int
    def __init__(self, name: _Optional[str] = ..., max: _Optional[int] = ...) -> None: ...

class VariantDescription(_message.Message):
    __slots__ = ("name", "values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., values: _Optional[_Iterable[str]] = ...) -> None: ...

class StateDescription(_message.Message):
    __slots__ = ("index_input", "slots")
    INDEX_INPUT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    index_input: str
    slots: int
    def __init__(self, index_input: _Optional[str] = ..., slots: _Optional[int] = ...) -> None: ...

class DescribeModelResponse(_message.Message):
    __slots__ = ("model", "version", "inputs", "outputs", "axes", "batch_axis", "phase", "variants", "state")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    AXES_FIELD_NUMBER: _ClassVar[int]
    BATCH_AXIS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    inputs: _containers.RepeatedCompositeFieldContainer[TensorDescription]
    outputs: _containers.RepeatedCompositeFieldContainer[TensorDescription]
    axes: _containers.RepeatedCompositeFieldContainer[AxisDescription]
    batch_axis: str
    phase: str
    variants: _containers.RepeatedCompositeFieldContainer[VariantDescription]
    state: _containers.RepeatedCompositeFieldContainer[StateDescription]
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[TensorDescription, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[TensorDescription, _Mapping]]] = ..., axes: _Optional[_Iterable[_Union[AxisDescription, _Mapping]]] = ..., batch_axis: _Optional[str] = ..., phase: _Optional[str] = ..., variants: _Optional[_Iterable[_Union[VariantDescription, _Mapping]]] = ..., state: _Optional[_Iterable[_Union[StateDescription, _Mapping]]] = ...) -> None: ...
