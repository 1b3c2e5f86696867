"""A step as a flat list of operations on tensors: recorded once, without running a kernel, and independent of the model's Python.

The step runs on fake tensors (shapes and types only), so what reads a value on the host can't go unnoticed, and no state changes.
Weights and buffers are arguments of the program rather than part of it: updates in place are seen by every replay.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any

import torch
from torch import fx, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_map

from cachepolicy.reasons import RefusalReason
from service.backends.blockers import Blocker, paths_of, place_of_call
from service.backends.staging import resolve
from service.backends.watch import Watch
from service.errors import CaptureRefused, said
from service.models.loaded import TORCH_DTYPES, LoadedModel
from service.models.spec import Variant

aten = torch.ops.aten

# torch copies the tree specs of an exported program by making them anew, which it deprecates itself.
warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)`", category=FutureWarning)

_Attributes = dict[tuple[str, str], Any]  # by path of the part and name
_TABLES = ("_parameters", "_buffers", "_modules")

_NO_DATA = ("numpy() is not supported", "Cannot access data pointer", "the storage is not allocated", "doesn't have storage")


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """`graph(*arguments)` reads the static inputs, writes the static outputs and declared state, and returns the outputs."""

    graph: fx.GraphModule
    arguments: tuple[torch.Tensor, ...]  # static inputs, static outputs, and what the step reads of the model

    @property
    def operations(self) -> int:
        """How many there are."""
        return sum(node.op == "call_function" for node in self.graph.graph.nodes)


def check_outputs(model: LoadedModel, outputs: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
    """Refuse outputs that are not as declared at these sizes: cutting them would give wrong rows."""
    for spec in model.spec.outputs:
        output: object = outputs[spec.name]
        if not isinstance(output, torch.Tensor):
            raise CaptureRefused(RefusalReason.CAPTURE_ERROR, f"output {spec.name} is a {type(output).__name__}, no tensor")
        try:
            shape = resolve(spec.shape, sizes)
        except KeyError as error:
            raise CaptureRefused(RefusalReason.OUTPUT_SHAPE, f"output {spec.name}: no input has the axis {error}") from error
        if tuple(output.shape) != shape:
            raise CaptureRefused(RefusalReason.OUTPUT_SHAPE, f"output {spec.name} is {list(output.shape)}, declared is {list(shape)}")
        if output.dtype is not TORCH_DTYPES[spec.datatype]:
            raise CaptureRefused(RefusalReason.CAPTURE_ERROR, f"output {spec.name} is {output.dtype}, declared is {spec.datatype}")


def record_program(
    model: LoadedModel,
    variant: Variant,
    inputs: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int],
) -> Program:
    """Record the step on these static tensors. Raises CaptureRefused.

    The model's Python runs on a copy that shares all tensors, so that nothing fake is left behind in the model.
    """
    twin = _twin(model.module)
    before = _attributes(twin)
    with FakeTensorMode(allow_non_fake_inputs=True, static_shapes=True) as fake:
        recorder = _Recorder(
            replace(model, module=twin), fake, {**inputs, **{f"static_{name}": tensor for name, tensor in outputs.items()}}
        )
        given: dict[str, torch.Tensor] = {name: recorder.enter(tensor) for name, tensor in inputs.items()}
        targets = {name: recorder.enter(tensor) for name, tensor in outputs.items()}
        try:
            with torch.no_grad(), recorder:
                results = replace(model, module=twin).forward(given, variant)
        except CaptureRefused:
            raise
        except DataDependentOutputException as error:
            raise CaptureRefused(RefusalReason.SYNC, str(error.func)) from error
        except DynamicOutputShapeException as error:
            raise CaptureRefused(RefusalReason.DATA_DEPENDENT, str(error.func)) from error
        except Exception as error:
            reason = RefusalReason.SYNC if any(text in said(error) for text in _NO_DATA) else RefusalReason.CAPTURE_ERROR
            raise Blocker.of_error(reason, error, paths_of(twin)).refusal() from error
        finally:
            torch.clear_autocast_cache()
            after = _attributes(twin)
            if twin is model.module:
                _restore(twin, before, after)
        check_outputs(model, results, sizes)
        _refuse_rebinding(before, after, recorder)
        return recorder.finish([(targets[name], results[name]) for name in targets])


class _Recorder(Watch):  # type: ignore[no-untyped-call]
    """Writes every operation down as a node of an fx graph."""

    def __init__(self, model: LoadedModel, fake: FakeTensorMode, statics: Mapping[str, torch.Tensor]) -> None:
        super().__init__(model, statics)
        self._fake = fake
        self._root = nn.Module()
        self._graph = fx.Graph()
        self._arguments: list[torch.Tensor] = []
        self._first_operation: fx.Node | None = None
        self._twins: dict[int, FakeTensor] = {}  # of real tensors, by id; `_arguments` keeps them alive
        self._nodes: dict[int, fx.Node] = {}  # by id of a fake tensor; `_kept` keeps them alive
        self._kept: list[torch.Tensor] = []

    def enter(self, tensor: torch.Tensor) -> FakeTensor:
        """The fake twin of a real tensor, which becomes an argument of the program."""
        twin = self._twins.get(id(tensor))
        if twin is None:
            twin = self._fake.from_tensor(tensor, static_shapes=True)
            self.inherit_owner(twin, tensor)
            with self._graph.inserting_before(self._first_operation) if self._first_operation else nullcontext():
                node = self._graph.placeholder(f"argument_{len(self._arguments)}")
            self._arguments.append(tensor)
            self._twins[id(tensor)] = twin
            self._know(twin, node)
        return twin

    def was_read(self, tensor: torch.Tensor) -> bool:
        """Whether the program has this real tensor as an argument."""
        return id(tensor) in self._twins

    def finish(self, results: list[tuple[torch.Tensor, torch.Tensor]]) -> Program:
        """End with copying each result to its target."""
        written = []
        for target, result in results:
            nodes = (self._node(target), self._node(self._inside(result)))
            written.append(self._graph.call_function(aten.copy_.default, nodes))
        self._graph.output(tuple(written))
        return Program(fx.GraphModule(self._root, self._graph), tuple(self._arguments))

    def __torch_dispatch__(
        self, func: OpOverload | HigherOrderOperator, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if isinstance(func, HigherOrderOperator):
            self.calls_back(func)
            return func(*args, **(kwargs or {}))
        if func.namespace == "profiler":  # marks for a profiler's eyes
            return func(*args, **(kwargs or {}))
        fresh = func is aten.lift_fresh.default  # a constant written in the code: each run gets a copy of its own
        func = aten.clone.default if fresh else func
        args, kwargs = tree_map(self._inside, (args, kwargs or {}))
        self.judge(func, args, kwargs)
        result = func(*args, **kwargs)
        self.judge_result(func, args, result)
        node = self._graph.call_function(func, *tree_map(self._as_node, (args, kwargs)))
        self._first_operation = self._first_operation or node
        if isinstance(result, list | tuple):
            for at, part in enumerate(result):
                if isinstance(part, torch.Tensor):
                    self._know(part, self._graph.call_function(getitem, (node, at)))
        elif isinstance(result, torch.Tensor):
            self._know(result, node)
        return result

    def _know(self, tensor: torch.Tensor, node: fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._kept.append(tensor)

    def _inside(self, value: Any) -> Any:
        return self.enter(value) if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) else value

    def _as_node(self, value: Any) -> Any:
        if isinstance(value, torch.ScriptObject):  # the packed weights of a quantised layer, for one
            name = f"object_{len(vars(self._root))}"
            setattr(self._root, name, value)
            return self._graph.get_attr(name)
        return self._node(value) if isinstance(value, torch.Tensor) else value

    def _node(self, tensor: torch.Tensor) -> fx.Node:
        node = self._nodes.get(id(tensor))
        if node is None:
            node = self._alias(tensor)
            self._know(tensor, node)
        return node

    def _alias(self, tensor: torch.Tensor) -> fx.Node:
        """The node of a tensor that came to be unseen (`tensor.data`) as another object over known memory."""
        for known in reversed(self._kept):
            if (
                known.untyped_storage()._cdata == tensor.untyped_storage()._cdata
                and (known.shape, known.stride(), known.storage_offset()) == (tensor.shape, tensor.stride(), tensor.storage_offset())
                and known.dtype is tensor.dtype
            ):
                return self._nodes[id(known)]
        raise CaptureRefused(RefusalReason.CAPTURE_ERROR, f"a tensor of unknown origin at {place_of_call()}")


def _twin(module: nn.Module) -> nn.Module:
    """A copy of the module's Python objects over the same tensors; the module itself where it can't be copied."""
    shared: dict[int, object] = {
        id(value): value
        for part in module.modules()
        for table in (part._parameters, part._buffers, vars(part))
        for value in table.values()
        if isinstance(value, torch.Tensor)
    }
    shared |= {id(part): part for part in module.modules() if isinstance(part, torch.jit.ScriptModule)}  # keep no Python attributes
    with suppress(Exception):  # locks, handles, generators: whatever a model holds
        return copy.deepcopy(module, shared)
    return module


def _attributes(module: nn.Module) -> _Attributes:
    """Every attribute of every part, parameters and buffers included, containers copied one level deep."""
    return {
        (path, name): copy.copy(value) if isinstance(value, list | dict | set) else value
        for path, part in module.named_modules()
        for table in (vars(part), part._parameters, part._buffers)
        for name, value in table.items()
        if name not in _TABLES and not isinstance(value, torch.ScriptMethod)
    }


def _restore(module: nn.Module, before: _Attributes, after: _Attributes) -> None:
    """Take back what the recording run set, so that no later run meets a fake tensor."""
    parts = dict(module.named_modules())
    for (path, name), value in after.items():
        if (path, name) not in before:
            delattr(parts[path], name)
        elif value is not before[path, name] and not _equal(value, before[path, name]):
            setattr(parts[path], name, before[path, name])


def _refuse_rebinding(before: _Attributes, after: _Attributes, recorder: _Recorder) -> None:
    """Refuse a step that changes attributes of the model which it reads: a replay would see the old ones for ever."""
    for (path, name), value in after.items():
        old = before.get((path, name))
        if value is old or (isinstance(old, torch.Tensor) and not recorder.was_read(old)):
            continue
        if isinstance(old, torch.Tensor) or not _equal(old, value):
            raise CaptureRefused(RefusalReason.STATEFUL, f"each step sets {path + '.' if path else ''}{name} ({type(value).__name__})")


def _equal(left: Any, right: Any) -> bool:
    try:
        return bool(left == right)
    except Exception:  # noqa: BLE001 - what can't be compared counts as changed
        return False
