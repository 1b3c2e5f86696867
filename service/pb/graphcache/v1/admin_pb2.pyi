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

class Graph(_message.Message):
    __slots__ = ("model", "version", "variant", "bucket", "state", "key", "hits", "saved_s", "bytes", "arena", "last_used_s", "pinned", "reason")
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
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., variant: _Optional[_Mapping[str, str]] = ..., bucket: _Optional[_Mapping[str, int]] = ..., state: _Optional[_Union[GraphState, str]] = ..., key: _Optional[str] = ..., hits: _Optional[int] = ..., saved_s: _Optional[float] = ..., bytes: _Optional[int] = ..., arena: _Optional[str] = ..., last_used_s: _Optional[float] = ..., pinned: bool = ..., reason: _Optional[str] = ...) -> None: ...

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

class WatchDecisionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchDecisionsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
