"""What tracing costs a replayed request at its client: with tracing off, at 1 %, at 100 %, and beside a collector that takes nothing.

Workers run side by side and are asked in turn, in short rounds, so that what else the machine does falls on all of them alike. Printed are
the medians over rounds of the ratio to the worker without tracing, and the interval in which 95 % of resampled medians lie.

    python -m benchmarks.tracing [--rounds 60] [--requests 40]
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from time import perf_counter

import grpc
import numpy as np

from service.pb.graphcache.v1.admin_pb2 import WarmRequest
from service.pb.graphcache.v1.admin_pb2_grpc import AdminServiceStub
from service.pb.graphcache.v1.replay_pb2 import ReplayRequest, Tensor
from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceStub
from tests.otlp import Collector, collecting
from tests.process import worker_process

BASE = "off"


def measure(stub: ReplayServiceStub, request: ReplayRequest, count: int) -> list[float]:
    """Seconds of each call."""
    taken = []
    for _ in range(count):
        began = perf_counter()
        stub.Replay(request)
        taken.append(perf_counter() - began)
    return taken


def collect(pipe: Connection, silent: bool) -> None:
    """A collector in a process of its own, until the pipe ends. A silent one never answers."""
    with collecting() as one:
        if silent:
            one.answer = _wait
        pipe.send(one.address)
        with suppress(EOFError):
            pipe.recv()


def _wait(collector: Collector, _: object) -> None:
    collector.gone.wait()


@contextmanager
def collector(*, silent: bool = False) -> Iterator[str]:
    """Its address."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=collect, args=(theirs, silent), daemon=True)
    process.start()
    theirs.close()
    yield ours.recv()
    ours.close()
    process.join()


def interval(ratios: list[float]) -> tuple[float, float]:
    """95 % of resampled medians."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(1000))
    return medians[25], medians[974]


def main() -> None:
    """Print a line for each variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--requests", type=int, default=40)
    arguments = parser.parse_args()
    x = np.ones((2, 256), np.float32)
    request = ReplayRequest(model="mlp", inputs=[Tensor(name="x", datatype="FP32", shape=x.shape, data=x.tobytes())])
    with ExitStack() as stack:
        address, deaf = stack.enter_context(collector()), stack.enter_context(collector(silent=True))
        variants = {
            BASE: [],
            "1 %": [f"telemetry.otlp={address}", "telemetry.sample=1%"],
            "100 %": [f"telemetry.otlp={address}", "telemetry.sample=100%"],
            "100 %, collector absent": ["telemetry.otlp=127.0.0.1:9", "telemetry.sample=100%"],
            "100 %, collector silent": [f"telemetry.otlp={deaf}", "telemetry.sample=100%"],
        }
        stubs = {}
        for name, sets in variants.items():
            options = [part for one in ["cache.prewarm.graphs=0", "cache.capture.background=false", *sets] for part in ("--set", one)]
            addresses = stack.enter_context(worker_process(("--demo", *options)))
            with grpc.insecure_channel(addresses.admin) as admin:
                AdminServiceStub(admin).Warm(WarmRequest(model="mlp", shape={"batch": 2}, force=True))
            stubs[name] = ReplayServiceStub(stack.enter_context(grpc.insecure_channel(addresses.inference)))
            measure(stubs[name], request, 300)
        p50: dict[str, list[float]] = {name: [] for name in variants}
        p99: dict[str, list[float]] = {name: [] for name in variants}
        names = list(variants)
        for _ in range(arguments.rounds):
            random.shuffle(names)
            for name in names:
                taken = sorted(measure(stubs[name], request, arguments.requests))
                p50[name].append(taken[len(taken) // 2])
                p99[name].append(taken[int(0.99 * (len(taken) - 1))])
    print(f"without tracing: p50 {statistics.median(p50[BASE]) * 1e6:.0f} µs, p99 {statistics.median(p99[BASE]) * 1e6:.0f} µs")
    for name in list(variants)[1:]:
        told = []
        for label, of in (("p50", p50), ("p99", p99)):
            ratios = [own / base for own, base in zip(of[name], of[BASE], strict=True)]
            low, high = interval(ratios)
            told.append(f"{label} × {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]")
        print(f"{name}: {', '.join(told)}")


if __name__ == "__main__":
    main()
