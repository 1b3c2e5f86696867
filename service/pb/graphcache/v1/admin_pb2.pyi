from service.pb.graphcache.v1 import replay_pb2 as _replay_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GraphState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GRAPH_STATE_UNSPECIFIED: _ClassVar[GraphState]
    GRAPH_STATE_PENDING: _ClassVar[GraphState]
    GRAPH_STATE_CAPTURING: _ClassVar[GraphState]
    GRAPH_STATE_VERIFYING: _ClassVar[GraphState]
    GRAPH_STATE_SERVING: _ClassVar[GraphState]
    GRAPH_STATE_SHADOW: _ClassVar[GraphState]
    GRAPH_STATE_REFUSED: _ClassVar[GraphState]
    GRAPH_STATE_RETIRING: _ClassVar[GraphState]

class ModelState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_STATE_UNSPECIFIED: _ClassVar[ModelState]
    MODEL_STATE_READY: _ClassVar[ModelState]
    MODEL_STATE_LOADING: _ClassVar[ModelState]
    MODEL_STATE_UNLOADING: _ClassVar[ModelState]
    MODEL_STATE_UNAVAILABLE: _ClassVar[ModelState]

class Happening(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HAPPENING_UNSPECIFIED: _ClassVar[Happening]
    HAPPENING_CAPTURED: _ClassVar[Happening]
    HAPPENING_REFUSED: _ClassVar[Happening]
    HAPPENING_EVICTED: _ClassVar[Happening]
GRAPH_STATE_UNSPECIFIED: GraphState
GRAPH_STATE_PENDING: GraphState
GRAPH_STATE_CAPTURING: GraphState
GRAPH_STATE_VERIFYING: GraphState
GRAPH_STATE_SERVING: GraphState
GRAPH_STATE_SHADOW: GraphState
GRAPH_STATE_REFUSED: GraphState
GRAPH_STATE_RETIRING: GraphState
MODEL_STATE_UNSPECIFIED: ModelState
MODEL_STATE_READY: ModelState
MODEL_STATE_LOADING: ModelState
MODEL_STATE_UNLOADING: ModelState
MODEL_STATE_UNAVAILABLE: ModelState
HAPPENING_UNSPECIFIED: Happening
HAPPENING_CAPTURED: Happening
HAPPENING_REFUSED: Happening
HAPPENING_EVICTED: Happening

class Graph(_message.Message):
    __slots__ = ("model", "version", "variant", "bucket", "state", "key", "hits", "saved_s", "bytes", "arena", "last_used_s", "pinned", "reason", "padding_ratio")
    class VariantEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class BucketEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    SAVED_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ARENA_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_S_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PADDING_RATIO_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    variant: _containers.ScalarMap[str, str]
    bucket: _containers.ScalarMap[str, int]
    state: GraphState
    key: str
    hits: int
    saved_s: float
    bytes: int
    arena: str
    last_used_s: float
    pinned: bool
    reason: str
    padding_ratio: float
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., variant: _Optional[_Mapping[str, str]] = ..., bucket: _Optional[_Mapping[str, int]] = ..., state: _Optional[_Union[GraphState, str]] = ..., key: _Optional[str] = ..., hits: _Optional[int] = ..., saved_s: _Optional[float] = ..., bytes: _Optional[int] = ..., arena: _Optional[str] = ..., last_used_s: _Optional[float] = ..., pinned: bool = ..., reason: _Optional[str] = ..., padding_ratio: _Optional[float] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "version", "state", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    state: ModelState
    reason: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[_Union[ModelState, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class ListGraphsRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ListGraphsResponse(_message.Message):
    __slots__ = ("graphs",)
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    graphs: _containers.RepeatedCompositeFieldContainer[Graph]
    def __init__(self, graphs: _Optional[_Iterable[_Union[Graph, _Mapping]]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("model", "version", "shape", "parameters")
    class ShapeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _replay_pb2.Parameter
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_replay_pb2.Parameter, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    shape: _containers.ScalarMap[str, int]
    parameters: _containers.MessageMap[str, _replay_pb2.Parameter]
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., shape: _Optional[_Mapping[str, int]] = ..., parameters: _Optional[_Mapping[str, _replay_pb2.Parameter]] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("model", "version", "path", "fallback_reason", "refusal_reason", "detail", "bucket", "padding_ratio", "predicted_s", "hint", "mode")
    class BucketEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_REASON_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    PADDING_RATIO_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_S_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    path: _replay_pb2.Path
    fallback_reason: _replay_pb2.FallbackReason
    refusal_reason: _replay_pb2.RefusalReason
    detail: str
    bucket: _containers.ScalarMap[str, int]
    padding_ratio: float
    predicted_s: float
    hint: str
    mode: _replay_pb2.ModeState
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., path: _Optional[_Union[_replay_pb2.Path, str]] = ..., fallback_reason: _Optional[_Union[_replay_pb2.FallbackReason, str]] = ..., refusal_reason: _Optional[_Union[_replay_pb2.RefusalReason, str]] = ..., detail: _Optional[str] = ..., bucket: _Optional[_Mapping[str, int]] = ..., padding_ratio: _Optional[float] = ..., predicted_s: _Optional[float] = ..., hint: _Optional[str] = ..., mode: _Optional[_Union[_replay_pb2.ModeState, _Mapping]] = ...) -> None: ...

class WarmRequest(_message.Message):
    __slots__ = ("model", "version", "shape", "parameters", "force")
    class ShapeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _replay_pb2.Parameter
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_replay_pb2.Parameter, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    shape: _containers.ScalarMap[str, int]
    parameters: _containers.MessageMap[str, _replay_pb2.Parameter]
    force: bool
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., shape: _Optional[_Mapping[str, int]] = ..., parameters: _Optional[_Mapping[str, _replay_pb2.Parameter]] = ..., force: bool = ...) -> None: ...

class WarmResponse(_message.Message):
    __slots__ = ("graph",)
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    graph: Graph
    def __init__(self, graph: _Optional[_Union[Graph, _Mapping]] = ...) -> None: ...

class EvictRequest(_message.Message):
    __slots__ = ("model", "version", "shape", "parameters")
    class ShapeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _replay_pb2.Parameter
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_replay_pb2.Parameter, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    shape: _containers.ScalarMap[str, int]
    parameters: _containers.MessageMap[str, _replay_pb2.Parameter]
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., shape: _Optional[_Mapping[str, int]] = ..., parameters: _Optional[_Mapping[str, _replay_pb2.Parameter]] = ...) -> None: ...

class EvictResponse(_message.Message):
    __slots__ = ("evicted",)
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    evicted: int
    def __init__(self, evicted: _Optional[int] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("model", "version", "shape", "parameters", "pinned")
    class ShapeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _replay_pb2.Parameter
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_replay_pb2.Parameter, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    shape: _containers.ScalarMap[str, int]
    parameters: _containers.MessageMap[str, _replay_pb2.Parameter]
    pinned: bool
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., shape: _Optional[_Mapping[str, int]] = ..., parameters: _Optional[_Mapping[str, _replay_pb2.Parameter]] = ..., pinned: bool = ...) -> None: ...

class PinResponse(_message.Message):
    __slots__ = ("graph",)
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    graph: Graph
    def __init__(self, graph: _Optional[_Union[Graph, _Mapping]] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("model", "version", "parameters", "budget_bytes", "graphs", "session_bytes")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _replay_pb2.Parameter
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_replay_pb2.Parameter, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    SESSION_BYTES_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    parameters: _containers.MessageMap[str, _replay_pb2.Parameter]
    budget_bytes: int
    graphs: int
    session_bytes: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., parameters: _Optional[_Mapping[str, _replay_pb2.Parameter]] = ..., budget_bytes: _Optional[int] = ..., graphs: _Optional[int] = ..., session_bytes: _Optional[int] = ...) -> None: ...

class PlannedGraph(_message.Message):
    __slots__ = ("bucket", "runs_per_s", "adds_s_per_s", "bytes", "capture_s")
    class BucketEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    RUNS_PER_S_FIELD_NUMBER: _ClassVar[int]
    ADDS_S_PER_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_S_FIELD_NUMBER: _ClassVar[int]
    bucket: _containers.ScalarMap[str, int]
    runs_per_s: float
    adds_s_per_s: float
    bytes: int
    capture_s: float
    def __init__(self, bucket: _Optional[_Mapping[str, int]] = ..., runs_per_s: _Optional[float] = ..., adds_s_per_s: _Optional[float] = ..., bytes: _Optional[int] = ..., capture_s: _Optional[float] = ...) -> None: ...

class PlanAlternative(_message.Message):
    __slots__ = ("name", "graphs", "saved_s_per_s", "padding_ratio", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    SAVED_S_PER_S_FIELD_NUMBER: _ClassVar[int]
    PADDING_RATIO_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    graphs: int
    saved_s_per_s: float
    padding_ratio: float
    bytes: int
    def __init__(self, name: _Optional[str] = ..., graphs: _Optional[int] = ..., saved_s_per_s: _Optional[float] = ..., padding_ratio: _Optional[float] = ..., bytes: _Optional[int] = ...) -> None: ...

class AxisSizes(_message.Message):
    __slots__ = ("sizes",)
    SIZES_FIELD_NUMBER: _ClassVar[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class SizeRuns(_message.Message):
    __slots__ = ("size", "runs")
    class SizeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    size: _containers.ScalarMap[str, int]
    runs: int
    def __init__(self, size: _Optional[_Mapping[str, int]] = ..., runs: _Optional[int] = ...) -> None: ...

class PlanResponse(_message.Message):
    __slots__ = ("model", "version", "variant", "runs", "seconds", "graphs", "ladder", "alternatives", "marginal_s_per_s_per_mib", "sessions_displaced", "histogram")
    class VariantEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LadderEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: AxisSizes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[AxisSizes, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    LADDER_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    MARGINAL_S_PER_S_PER_MIB_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_DISPLACED_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    variant: _containers.ScalarMap[str, str]
    runs: int
    seconds: float
    graphs: _containers.RepeatedCompositeFieldContainer[PlannedGraph]
    ladder: _containers.MessageMap[str, AxisSizes]
    alternatives: _containers.RepeatedCompositeFieldContainer[PlanAlternative]
    marginal_s_per_s_per_mib: float
    sessions_displaced: float
    histogram: _containers.RepeatedCompositeFieldContainer[SizeRuns]
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., variant: _Optional[_Mapping[str, str]] = ..., runs: _Optional[int] = ..., seconds: _Optional[float] = ..., graphs: _Optional[_Iterable[_Union[PlannedGraph, _Mapping]]] = ..., ladder: _Optional[_Mapping[str, AxisSizes]] = ..., alternatives: _Optional[_Iterable[_Union[PlanAlternative, _Mapping]]] = ..., marginal_s_per_s_per_mib: _Optional[float] = ..., sessions_displaced: _Optional[float] = ..., histogram: _Optional[_Iterable[_Union[SizeRuns, _Mapping]]] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("config_yaml",)
    CONFIG_YAML_FIELD_NUMBER: _ClassVar[int]
    config_yaml: str
    def __init__(self, config_yaml: _Optional[str] = ...) -> None: ...

class LoadModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class UnloadModelRequest(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class UnloadModelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReloadModelRequest(_message.Message):
    __slots__ = ("model", "version", "weights_path")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_PATH_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    weights_path: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., weights_path: _Optional[str] = ...) -> None: ...

class ReloadModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class SetGraphModeRequest(_message.Message):
    __slots__ = ("model", "version", "parameters", "mode", "for_s")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _replay_pb2.Parameter
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_replay_pb2.Parameter, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    FOR_S_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    parameters: _containers.MessageMap[str, _replay_pb2.Parameter]
    mode: str
    for_s: float
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., parameters: _Optional[_Mapping[str, _replay_pb2.Parameter]] = ..., mode: _Optional[str] = ..., for_s: _Optional[float] = ...) -> None: ...

class SetGraphModeResponse(_message.Message):
    __slots__ = ("mode",)
    MODE_FIELD_NUMBER: _ClassVar[int]
    mode: _replay_pb2.ModeState
    def __init__(self, mode: _Optional[_Union[_replay_pb2.ModeState, _Mapping]] = ...) -> None: ...

class SetBudgetRequest(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class SetBudgetResponse(_message.Message):
    __slots__ = ("budget_bytes", "used_bytes", "freed_bytes", "reusable_bytes")
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REUSABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    budget_bytes: int
    used_bytes: int
    freed_bytes: int
    reusable_bytes: int
    def __init__(self, budget_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., freed_bytes: _Optional[int] = ..., reusable_bytes: _Optional[int] = ...) -> None: ...

class ReasonCount(_message.Message):
    __slots__ = ("fallback_reason", "requests", "lost_s", "detail", "hint")
    FALLBACK_REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    LOST_S_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    fallback_reason: _replay_pb2.FallbackReason
    requests: int
    lost_s: float
    detail: str
    hint: str
    def __init__(self, fallback_reason: _Optional[_Union[_replay_pb2.FallbackReason, str]] = ..., requests: _Optional[int] = ..., lost_s: _Optional[float] = ..., detail: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class ModelView(_message.Message):
    __slots__ = ("name", "versions", "outcomes", "saved_s", "slower_s", "reasons", "alarm")
    class OutcomesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    SAVED_S_FIELD_NUMBER: _ClassVar[int]
    SLOWER_S_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    ALARM_FIELD_NUMBER: _ClassVar[int]
    name: str
    versions: _containers.RepeatedScalarFieldContainer[str]
    outcomes: _containers.ScalarMap[str, int]
    saved_s: float
    slower_s: float
    reasons: _containers.RepeatedCompositeFieldContainer[ReasonCount]
    alarm: str
    def __init__(self, name: _Optional[str] = ..., versions: _Optional[_Iterable[str]] = ..., outcomes: _Optional[_Mapping[str, int]] = ..., saved_s: _Optional[float] = ..., slower_s: _Optional[float] = ..., reasons: _Optional[_Iterable[_Union[ReasonCount, _Mapping]]] = ..., alarm: _Optional[str] = ...) -> None: ...

class VariantMode(_message.Message):
    __slots__ = ("model", "variant", "mode")
    class VariantEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    model: str
    variant: _containers.ScalarMap[str, str]
    mode: _replay_pb2.ModeState
    def __init__(self, model: _Optional[str] = ..., variant: _Optional[_Mapping[str, str]] = ..., mode: _Optional[_Union[_replay_pb2.ModeState, _Mapping]] = ...) -> None: ...

class SizeCount(_message.Message):
    __slots__ = ("model", "variant", "size", "runs", "bucket")
    class VariantEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SizeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class BucketEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    model: str
    variant: _containers.ScalarMap[str, str]
    size: _containers.ScalarMap[str, int]
    runs: int
    bucket: _containers.ScalarMap[str, int]
    def __init__(self, model: _Optional[str] = ..., variant: _Optional[_Mapping[str, str]] = ..., size: _Optional[_Mapping[str, int]] = ..., runs: _Optional[int] = ..., bucket: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("waiting", "running", "saturation", "busy_ratio", "backlog_s")
    class BacklogSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    SATURATION_FIELD_NUMBER: _ClassVar[int]
    BUSY_RATIO_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_S_FIELD_NUMBER: _ClassVar[int]
    waiting: int
    running: int
    saturation: float
    busy_ratio: float
    backlog_s: _containers.ScalarMap[str, float]
    def __init__(self, waiting: _Optional[int] = ..., running: _Optional[int] = ..., saturation: _Optional[float] = ..., busy_ratio: _Optional[float] = ..., backlog_s: _Optional[_Mapping[str, float]] = ...) -> None: ...

class DeviceReading(_message.Message):
    __slots__ = ("memory_used_bytes", "memory_total_bytes", "utilization_ratio", "clocks_hertz")
    class ClocksHertzEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_RATIO_FIELD_NUMBER: _ClassVar[int]
    CLOCKS_HERTZ_FIELD_NUMBER: _ClassVar[int]
    memory_used_bytes: int
    memory_total_bytes: int
    utilization_ratio: float
    clocks_hertz: _containers.ScalarMap[str, float]
    def __init__(self, memory_used_bytes: _Optional[int] = ..., memory_total_bytes: _Optional[int] = ..., utilization_ratio: _Optional[float] = ..., clocks_hertz: _Optional[_Mapping[str, float]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("worker", "program_version", "device", "at", "uptime_s", "ready", "load", "budget_bytes", "used_bytes", "reusable_bytes", "memory", "models", "modes", "graphs", "sizes")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REUSABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    MODES_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    program_version: str
    device: str
    at: float
    uptime_s: float
    ready: bool
    load: Load
    budget_bytes: int
    used_bytes: int
    reusable_bytes: int
    memory: DeviceReading
    models: _containers.RepeatedCompositeFieldContainer[ModelView]
    modes: _containers.RepeatedCompositeFieldContainer[VariantMode]
    graphs: _containers.RepeatedCompositeFieldContainer[Graph]
    sizes: _containers.RepeatedCompositeFieldContainer[SizeCount]
    def __init__(self, worker: _Optional[str] = ..., program_version: _Optional[str] = ..., device: _Optional[str] = ..., at: _Optional[float] = ..., uptime_s: _Optional[float] = ..., ready: bool = ..., load: _Optional[_Union[Load, _Mapping]] = ..., budget_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., reusable_bytes: _Optional[int] = ..., memory: _Optional[_Union[DeviceReading, _Mapping]] = ..., models: _Optional[_Iterable[_Union[ModelView, _Mapping]]] = ..., modes: _Optional[_Iterable[_Union[VariantMode, _Mapping]]] = ..., graphs: _Optional[_Iterable[_Union[Graph, _Mapping]]] = ..., sizes: _Optional[_Iterable[_Union[SizeCount, _Mapping]]] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("at", "model", "version", "request_id", "trace_id", "shape", "outcome", "fallback_reason", "refusal_reason", "detail", "hint", "bucket", "variant", "padding_ratio", "batch_rows", "parts", "queue_s", "execute_s", "total_s")
    class ShapeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
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
    AT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_REASON_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    PADDING_RATIO_FIELD_NUMBER: _ClassVar[int]
    BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    EXECUTE_S_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    at: float
    model: str
    version: str
    request_id: str
    trace_id: str
    shape: _containers.ScalarMap[str, int]
    outcome: str
    fallback_reason: _replay_pb2.FallbackReason
    refusal_reason: _replay_pb2.RefusalReason
    detail: str
    hint: str
    bucket: _containers.ScalarMap[str, int]
    variant: _containers.ScalarMap[str, str]
    padding_ratio: float
    batch_rows: int
    parts: int
    queue_s: float
    execute_s: float
    total_s: float
    def __init__(self, at: _Optional[float] = ..., model: _Optional[str] = ..., version: _Optional[str] = ..., request_id: _Optional[str] = ..., trace_id: _Optional[str] = ..., shape: _Optional[_Mapping[str, int]] = ..., outcome: _Optional[str] = ..., fallback_reason: _Optional[_Union[_replay_pb2.FallbackReason, str]] = ..., refusal_reason: _Optional[_Union[_replay_pb2.RefusalReason, str]] = ..., detail: _Optional[str] = ..., hint: _Optional[str] = ..., bucket: _Optional[_Mapping[str, int]] = ..., variant: _Optional[_Mapping[str, str]] = ..., padding_ratio: _Optional[float] = ..., batch_rows: _Optional[int] = ..., parts: _Optional[int] = ..., queue_s: _Optional[float] = ..., execute_s: _Optional[float] = ..., total_s: _Optional[float] = ...) -> None: ...

class GraphEvent(_message.Message):
    __slots__ = ("at", "happening", "model", "bucket", "variant", "seconds", "bytes", "detail")
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
    AT_FIELD_NUMBER: _ClassVar[int]
    HAPPENING_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    at: float
    happening: Happening
    model: str
    bucket: _containers.ScalarMap[str, int]
    variant: _containers.ScalarMap[str, str]
    seconds: float
    bytes: int
    detail: str
    def __init__(self, at: _Optional[float] = ..., happening: _Optional[_Union[Happening, str]] = ..., model: _Optional[str] = ..., bucket: _Optional[_Mapping[str, int]] = ..., variant: _Optional[_Mapping[str, str]] = ..., seconds: _Optional[float] = ..., bytes: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class FindDecisionsRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class FindDecisionsResponse(_message.Message):
    __slots__ = ("decisions", "kept")
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    kept: int
    def __init__(self, decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ..., kept: _Optional[int] = ...) -> None: ...

class WatchDecisionsRequest(_message.Message):
    __slots__ = ("model", "fallbacks_only")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_ONLY_FIELD_NUMBER: _ClassVar[int]
    model: str
    fallbacks_only: bool
    def __init__(self, model: _Optional[str] = ..., fallbacks_only: bool = ...) -> None: ...

class WatchDecisionsResponse(_message.Message):
    __slots__ = ("request", "graph")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    request: Decision
    graph: GraphEvent
    def __init__(self, request: _Optional[_Union[Decision, _Mapping]] = ..., graph: _Optional[_Union[GraphEvent, _Mapping]] = ...) -> None: ...
