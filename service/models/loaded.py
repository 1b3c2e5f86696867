"""A model that is up: its spec, its code on the device, and what names it in keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from cachepolicy.buckets import Bucket
from cachepolicy.keys import GraphKey, Signature
from service.errors import ModelRaised, ends_the_program
from service.models.spec import ModelSpec, Variant
from service.tensors import Datatype

TORCH_DTYPES: dict[Datatype, torch.dtype] = {
    Datatype.BOOL: torch.bool,
    Datatype.INT8: torch.int8,
    Datatype.INT16: torch.int16,
    Datatype.INT32: torch.int32,
    Datatype.INT64: torch.int64,
    Datatype.UINT8: torch.uint8,
    Datatype.UINT16: torch.uint16,
    Datatype.UINT32: torch.uint32,
    Datatype.UINT64: torch.uint64,
    Datatype.FP16: torch.float16,
    Datatype.BF16: torch.bfloat16,
    Datatype.FP32: torch.float32,
    Datatype.FP64: torch.float64,
}
DATATYPES: dict[torch.dtype, Datatype] = {dtype: datatype for datatype, dtype in TORCH_DTYPES.items()}

ExampleInputs = Callable[[int, int], Mapping[str, torch.Tensor]]


def _no_source() -> LoadedModel:
    raise NotImplementedError("this model was put together by hand")


@dataclass(slots=True, eq=False)
class LoadedModel:
    """One version of a model on the device.

    `weights` names this very load ("encoder:1@3"); `program` is what costs may be shared under (docs/design.md, 8).
    `examples(batch, seed)` gives real values where the model's source has them. `fresh()` makes another instance, with weights and
    state as after a load, that shares nothing with this one; it raises what a load raises.
    """

    spec: ModelSpec
    module: nn.Module
    device: torch.device
    program: str
    weights: str
    state: dict[str, torch.Tensor] = field(default_factory=dict)  # declared buffers by name
    examples: ExampleInputs | None = None
    fresh: Callable[[], LoadedModel] = _no_source

    def forward(self, inputs: dict[str, torch.Tensor], variant: Variant) -> dict[str, torch.Tensor]:
        """Run the step. Inputs go by keyword, variant choices as string keywords; outputs come back by declared name, in order.

        Raises ValueError where the outputs are not the declared ones; an Exception of the model passes through. What is none
        (SystemExit, CancelledError) would end the thread or the task that meets it, and comes as ModelRaised.
        """
        try:
            return name_outputs(self.module(**inputs, **dict(variant)), [output.name for output in self.spec.outputs])
        except Exception:
            raise
        except BaseException as error:
            if ends_the_program(error):
                raise
            raise ModelRaised(error) from error

    def signature(self, environment: str, variant: Variant) -> Signature:
        """What this model's graphs of a variant depend on, buckets aside."""
        return Signature(
            environment=environment,
            program=self.program,
            weights=self.weights,
            variant=variant,
            phase=self.spec.phase,
            datatypes=tuple((spec.name, str(spec.datatype)) for spec in self.spec.inputs),
            compile=str(self.spec.compile),
        )

    def key(self, environment: str, variant: Variant, bucket: Bucket) -> GraphKey:
        """Names the graph of a bucket."""
        return GraphKey(self.signature(environment, variant), bucket)


def name_outputs(result: object, names: Sequence[str] | None) -> dict[str, torch.Tensor]:
    """A model's result as tensors by name, in the order of `names`; without names a dict has its own, others are `output`, `output_0` ….

    Raises ValueError where the result is not a tensor, a sequence or a mapping of tensors, or has other names or another number of them.
    """
    if isinstance(result, torch.Tensor):
        result = (result,)
    if isinstance(result, Mapping):
        if names is not None and set(result) != set(names):
            raise ValueError(f"model returned {', '.join(map(str, result))}; declared are {', '.join(names)}")
        named = {str(name): result[name] for name in (names or result)}
    elif isinstance(result, tuple | list):
        if names is None:
            names = ["output"] if len(result) == 1 else [f"output_{number}" for number in range(len(result))]
        if len(result) != len(names):
            raise ValueError(f"model returned {len(result)} outputs; declared are {len(names)}")
        named = dict(zip(names, result, strict=True))
    else:
        raise ValueError(f"model returned {type(result).__name__}, not tensors")  # noqa: TRY004 (one kind of error for all wrong results)
    for name, tensor in named.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"output {name} is {type(tensor).__name__}, not a tensor")  # noqa: TRY004 (likewise)
    return named
