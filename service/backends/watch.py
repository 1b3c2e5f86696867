"""Watches one run of a step, operation by operation, for what a recording can't repeat, and refuses with its name and place.

The CPU backend watches while it records; the CUDA backend watches a warm-up run, so that most refusals come before a capture begins
and none has to be cleaned up after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from cachepolicy.reasons import RefusalReason
from service.backends.blockers import Blocker, paths_of
from service.models.loaded import LoadedModel

aten = torch.ops.aten

_COPIES = (aten._to_copy.default, aten.copy_.default)
_MASK_TYPES = (torch.bool, torch.uint8)
_DETERMINISTIC_AT_ZERO = ("dropout_p", "dropout", "p")
_READ_CONDITIONS = ("cond", "while_loop")
_TRAINING_FLAGS = ("train", "training")


def training_parts(module: nn.Module) -> Iterator[Blocker]:
    """Every part that was left in training mode and behaves otherwise there.

    A plain layer that a model builds on its first call is in training mode too, and does no harm: of torch's own modules only those
    that read the flag count, of others all.
    """
    for path, part in module.named_modules():
        if part.training and _reads_training(part):
            what = f"{type(part).__name__} is in training mode"
            yield Blocker(RefusalReason.TRAINING_MODE, what=what, module=path)


def refuse_training(module: nn.Module) -> None:
    """Refuse a module of which a part is in training mode. Raises CaptureRefused."""
    for blocker in training_parts(module):
        raise blocker.refusal()


def _reads_training(module: nn.Module) -> bool:
    if not type(module).__module__.startswith("torch."):
        return True
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return bool(module.dropout)
    return isinstance(
        module,
        nn.modules.batchnorm._NormBase | nn.modules.dropout._DropoutNd | nn.RReLU,
    )


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises CaptureRefused at the first operation that rules a recording out; a subclass may note it and go on."""

    supports_higher_order_operators = True

    def __init__(self, model: LoadedModel, inputs: Mapping[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = model.device.type
        self._owners: dict[int, tuple[RefusalReason, str]] = {}
        self._declared = {storage_of(tensor) for tensor in model.state.values()}
        self._paths = paths_of(model.module)
        for path, module in model.module.named_modules():
            prefix = f"{path}." if path else ""
            for reason, tensors in (
                (RefusalReason.PARAMETER_MUTATION, module._parameters),
                (RefusalReason.STATEFUL, module._buffers),
                (RefusalReason.STATEFUL, vars(module)),
            ):
                for name, value in tensors.items():
                    if isinstance(value, torch.Tensor):
                        self._own(value, reason, prefix + name)
        for name, tensor in inputs.items():
            self._owners[storage_of(tensor)] = (RefusalReason.INPUT_MUTATION, name)
        self._made = {storage_of(tensor) for tensor in inputs.values()}  # storages of inputs and results
        self._read: dict[int, torch.Tensor] = {}  # by storage

    def reads(self) -> tuple[torch.Tensor, ...]:
        """Every tensor that the step used and did not make: a recording has to keep them alive."""
        return tuple(self._read.values())

    def _own(self, tensor: torch.Tensor, reason: RefusalReason, name: str) -> None:
        storage = storage_of(tensor)
        if storage not in self._declared:
            self._owners.setdefault(storage, (reason, name))

    def inherit_owner(self, twin: torch.Tensor, tensor: torch.Tensor) -> None:
        """What may not be written to `tensor` may not be written to its twin either. What nobody owns outlives the step all the same."""
        storage = storage_of(tensor)
        if storage not in self._declared:
            self._owners.setdefault(
                storage_of(twin), self._owners.get(storage, (RefusalReason.STATEFUL, "a tensor that outlives the step"))
            )

    def __torch_dispatch__(
        self, func: OpOverload | HigherOrderOperator, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            self.calls_back(func)
            return func(*args, **kwargs)
        self.judge(func, args, kwargs)
        self._read |= {
            storage: tensor for tensor in _tensors((*args, *kwargs.values())) if (storage := storage_of(tensor)) not in self._made
        }
        result = func(*args, **kwargs)
        self.judge_result(func, args, result)
        self._made.update(storage for tensor in _tensors((result,)) if (storage := storage_of(tensor)) not in self._read)
        return result

    def judge(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse an operation by what it is and what it is given."""
        tensors = _tensors((*args, *kwargs.values()))
        here = self._here(tensors)
        if here and torch.Tag.data_dependent_output in func.tags:
            self.blocked(RefusalReason.SYNC, func)
        if here and _sized_by_values(func, args):
            self.blocked(RefusalReason.DATA_DEPENDENT, func)
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._judge_random(func, args, kwargs)
        if self._device != "cpu":
            self._judge_devices(func, args, kwargs, tensors)
        self._judge_writes(func, args, kwargs)

    def judge_result(self, func: OpOverload, args: tuple[Any, ...], result: Any) -> None:
        """Refuse an operation that tells Python a value it read from the device."""
        if isinstance(result, bool | int | float) and self._here(args):
            self.blocked(RefusalReason.SYNC, func)

    def blocked(self, reason: RefusalReason, func: OpOverload, what: str = "") -> None:
        """What is done about an operation that rules a recording out: it is refused."""
        raise Blocker.here(reason, str(func).removesuffix(".default"), what, self._paths).refusal()

    def calls_back(self, func: HigherOrderOperator) -> None:
        """Refuse an operator (torch.cond) that runs Python of its own: no replay would."""
        self.call_blocked(*why_no_callback(str(func)))

    def noted(self) -> int:
        """See service.backends.calls.Notes: nothing is, since the first blocker ends the run."""
        return 0

    def call_blocked(self, reason: RefusalReason, call: str, what: str = "", host: tuple[str, int] | None = None) -> None:
        """What is done about a Python call that rules a recording out: it is refused."""
        raise Blocker.here(reason, call, what, self._paths).refusal()

    def host_read(self, tensor: torch.Tensor) -> None:
        """Values in host memory may be read: the step is the same wherever they come from."""

    def _judge_random(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        declared = func._schema.arguments
        given = {argument.name: argument.default_value for argument in declared}
        given |= {argument.name: value for argument, value in zip(declared, args, strict=False)} | kwargs
        if any(given.get(name) == 0 for name in _DETERMINISTIC_AT_ZERO) or any(given.get(name) is False for name in _TRAINING_FLAGS):
            return
        self.blocked(RefusalReason.NONDETERMINISTIC if given.get("generator") is None else RefusalReason.RNG, func)

    def _judge_devices(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> None:
        """Copies between host and device, and host tensors in a device's operation.

        A host tensor of no dimension is an exception: its value goes into the kernel's arguments.
        """
        if func in _COPIES:
            source = args[0] if func is aten._to_copy.default else args[1]
            target = kwargs.get("device") if func is aten._to_copy.default else args[0].device
            if target is not None and torch.device(target).type != source.device.type:
                self.blocked(RefusalReason.CPU_TENSOR if source.device.type == "cpu" else RefusalReason.SYNC, func)
        elif func is aten.lift_fresh.default and self._here(tensors):
            self.blocked(RefusalReason.CPU_TENSOR, func, "copies a literal to the device")
        elif self._here(tensors) and any(tensor.device.type == "cpu" and tensor.dim() > 0 for tensor in tensors):
            self.blocked(RefusalReason.CPU_TENSOR, func)

    def _here(self, values: Iterable[Any]) -> bool:
        return any(isinstance(value, torch.Tensor) and value.device.type == self._device for value in values)

    def _judge_writes(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for tensor in written(func, args, kwargs):
            owner = self._owners.get(storage_of(tensor))
            if owner is not None:
                self.blocked(owner[0], func, f"writes to {owner[1]}")


def why_no_callback(name: str) -> tuple[RefusalReason, str, str]:
    """Reason, operator and fault of a higher-order operator."""
    if name in _READ_CONDITIONS:
        return RefusalReason.SYNC, f"torch.{name}", "reads its condition on the host"
    return RefusalReason.CAPTURE_ERROR, f"torch.{name}", "calls back into Python"


def forget_compiled() -> None:
    """After a run under a dispatch mode that met a higher-order operator: what that compiled fails in every run without the mode."""
    torch._dynamo.reset()


def storage_of(tensor: torch.Tensor) -> int:
    """The identity of a tensor's storage, which its views share."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else id(tensor)


def written(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that an operation is given to write to."""
    for at, name in _written_arguments(func):
        yield from _tensors((args[at] if at < len(args) else kwargs.get(name),))


@cache  # reading a schema takes longer than all the rest that is done per operation
def _written_arguments(func: OpOverload) -> tuple[tuple[int, str], ...]:
    arguments = enumerate(func._schema.arguments)
    return tuple((at, argument.name) for at, argument in arguments if argument.alias_info is not None and argument.alias_info.is_write)


def _tensors(values: Iterable[object]) -> list[torch.Tensor]:
    """The tensors among an operation's arguments or results, lists of them included."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def _sized_by_values(func: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether a result's size depends on values. Indexing carries the tag for its masks; with integers its size is fixed."""
    return _selects_by_mask(func, args) or (torch.Tag.dynamic_output_shape in func.tags and func is not aten.index.Tensor)


def _selects_by_mask(func: OpOverload, args: tuple[Any, ...]) -> bool:
    """`x[mask]` has as many results as the mask has true elements; `x[mask] = y` as many sources, unless y is one number."""
    if func is aten.index.Tensor:
        return any(index is not None and index.dtype in _MASK_TYPES for index in args[1])
    if func in (aten.index_put.default, aten.index_put_.default):
        return args[2].numel() != 1 and any(index is not None and index.dtype in _MASK_TYPES for index in args[1])
    return False
