"""Turns a recorded program into one that runs faster than the model's Python. Which lowering, and why: docs/decisions/0010."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode

from cachepolicy.reasons import RefusalReason
from service.backends.artefacts import seal
from service.backends.program import Program
from service.choices import Compile
from service.errors import CaptureRefused, told

log = logging.getLogger(__name__)

Step = Callable[[], object]

warnings.filterwarnings("ignore", message="`torch.jit", category=DeprecationWarning)


class Lowering(Protocol):
    """One way to run a program."""

    name: str

    def lower(self, program: Program) -> Step:
        """A call that runs the program on its arguments. May run it. Raises CaptureRefused where it can't be lowered."""
        ...


class TorchScript:
    """Runs the operations one by one without Python: the very kernels that eager runs."""

    name = "torchscript"

    def lower(self, program: Program) -> Step:
        """Trace the program; takes milliseconds."""
        graph, arguments = program.graph, program.arguments

        def run(*tensors: torch.Tensor) -> Any:
            return graph(*tensors)

        with torch.no_grad():
            script = torch.jit.trace(run, arguments, check_trace=False)  # type: ignore[no-untyped-call]

        def step() -> None:
            with torch.inference_mode():  # also skips what autograd would do per operation
                script(*arguments)

        step()  # the executor specialises itself in its first two runs
        step()
        return step


class Plain:
    """Runs the operations as Python calls: slower than TorchScript, but there is nothing that it can't run."""

    name = "python"

    def lower(self, program: Program) -> Step:
        """Nothing to do."""
        graph, arguments = program.graph, program.arguments

        def step() -> None:
            with torch.inference_mode():
                graph(*arguments)

        step()
        return step


class Inductor:
    """Compiles the program to fused kernels; takes seconds."""

    name = "inductor"

    def lower(self, program: Program) -> Step:
        """Compile for these very sizes, without CUDA graphs of its own."""
        from torch._inductor import config  # noqa: PLC0415 - takes a second to import, and is seldom wanted
        from torch._inductor.compile_fx import compile_fx  # noqa: PLC0415
        from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: PLC0415

        arguments = list(program.arguments)
        # Inductor keeps and finds again what it compiled only inside the context of a trace, which a recorded program does not come with.
        trace = TracingContext(FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True))
        with torch.no_grad(), config.patch({"triton.cudagraphs": False}), tracing(trace):
            compiled = cast("Callable[..., Any]", compile_fx(program.graph, arguments))
        seal()

        def step() -> None:
            with torch.no_grad():
                compiled(*arguments)

        return step


def lowerings_for(choice: Compile) -> Sequence[Lowering]:
    """The lowerings of a model's `compile`, the best one first."""
    match choice:
        case Compile.NONE:
            return TorchScript(), Plain()
        case Compile.INDUCTOR:
            return (Inductor(),)


def lower(program: Program, choice: Compile) -> Step:
    """Lower a program as the model asks. Raises CaptureRefused."""
    problem = ""
    for lowering in lowerings_for(choice):
        try:
            return lowering.lower(program)
        except Exception as error:  # noqa: BLE001 - the next one may do
            problem = problem or f"{lowering.name}: {told(error)}"
            log.debug("not lowered: %s", problem)
    raise CaptureRefused(RefusalReason.CAPTURE_ERROR, problem)
