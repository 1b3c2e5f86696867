"""The ways to run a recorded program on the CPU, against the model's own Python. Behind docs/decisions/0010.

python benchmarks/cpu_lowering.py [--steps 300] [--inductor]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.device_step import decoder, dense
from service.backends.lowering import Inductor, Lowering, Step, TorchScript
from service.backends.program import Program, record_program
from service.backends.staging import InputStaging, OutputStaging
from service.models import demo
from service.tensors import Datatype

CPU = torch.device("cpu")


class Interpreted:
    """The recorded operations called one by one from Python."""

    name = "interpreted"

    def lower(self, program: Program) -> Step:
        """As it is."""

        def step() -> None:
            with torch.inference_mode():
                program.graph(*program.arguments)

        return step


def median(runs: list[Callable[[], object]], steps: int) -> list[float]:
    """Microseconds of each, in turns."""
    taken: list[list[float]] = [[] for _ in runs]
    for turn in range(steps + 20):
        for run, times in zip(runs, taken, strict=True):
            started = time.perf_counter()
            run()
            if turn >= 20:
                times.append((time.perf_counter() - started) * 1e6)
    return [statistics.median(times) for times in taken]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--inductor", action="store_true")
    options = parser.parse_args()
    lowerings: list[Lowering] = [Interpreted(), TorchScript(), *([Inductor()] if options.inductor else [])]
    print(f"{'model':>10}  operations  record ms  " + "  ".join(f"{x.name + ' ms':>14}" for x in lowerings), end="")
    print(f"  {'eager µs':>10}" + "".join(f"  {x.name + ' µs':>14}" for x in lowerings))
    for model, size in (
        (dense("chain32", demo.chain32(), 1024, Datatype.FP32, CPU), 1),
        (dense("mlp", demo.mlp(), 256, Datatype.FP32, CPU), 1),
        (decoder("decode", CPU), 1),
    ):
        sizes = {"batch": size}
        inputs, outputs = InputStaging(model.spec, sizes), OutputStaging(model.spec, sizes)
        inputs.write_safe()
        given, targets = inputs.views(inputs.host), outputs.views(outputs.host)
        with torch.no_grad():
            model.forward(dict(given), ())
            record_program(model, (), given, targets, sizes)  # the first one imports what fake tensors need
            started = time.perf_counter()
            program = record_program(model, (), given, targets, sizes)
            recorded = time.perf_counter() - started
            steps, lowered = [], []
            for lowering in lowerings:
                started = time.perf_counter()
                steps.append(lowering.lower(program))
                steps[-1]()
                lowered.append(time.perf_counter() - started)
            figures = median([lambda model=model, given=given: model.forward(dict(given), ()), *steps], options.steps)  # type: ignore[misc]
        print(f"{model.spec.name:>10}  {program.operations:>10}  {recorded * 1e3:>9.1f}", end="")
        print("".join(f"  {seconds * 1e3:>14.1f}" for seconds in lowered), end="")
        print(f"  {figures[0]:>10.1f}" + "".join(f"  {figure:>14.1f}" for figure in figures[1:]))


if __name__ == "__main__":
    main()
