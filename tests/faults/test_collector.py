"""Collectors that are away, slow, silent or broken: no request notices, what is lost is counted, and leaving does not take long."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

import grpc
import numpy as np
import pytest

from service.pb.graphcache.v1 import replay_pb2
from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceStub
from tests.otlp import Answer, Collector, collecting, settle
from tests.process import Addresses, worker_process


def _swallows(one: Collector, _: Any) -> None:
    one.gone.wait()


def _slow(*_: Any) -> None:
    time.sleep(0.5)


def _refuses(_: Collector, context: Any) -> None:
    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no more")


@contextmanager
def collector(answer: Answer | None) -> Iterator[Collector]:
    """One that answers so; None for one that is not there."""
    with collecting() as one:
        if answer is not None:
            one.answer = answer
            yield one
            return
    yield one  # its port is closed now


def ask(stub: ReplayServiceStub, count: int) -> None:
    """Requests that are answered right."""
    x = np.ones((2, 256), np.float32)
    tensor = replay_pb2.Tensor(name="x", datatype="FP32", shape=x.shape, data=x.tobytes())
    replies = {stub.Replay(replay_pb2.ReplayRequest(model="mlp", inputs=[tensor])).outputs[0].data for _ in range(count)}
    assert len({np.frombuffer(data, np.float32).shape for data in replies}) == 1


def dropped(addresses: Addresses) -> int:
    """What the worker says that it lost."""
    with urlopen(f"http://{addresses.metrics}/metrics") as answer:
        text = answer.read().decode()
    found = re.search(r"^graphcache_telemetry_dropped_total ([\d.]+)", text, re.MULTILINE)
    assert found
    return int(float(found[1]))


@pytest.mark.parametrize("answer", [None, _swallows, _refuses], ids=["absent", "swallowing", "refusing"])
def test_a_collector_that_takes_nothing_costs_only_traces(answer: Answer | None) -> None:
    """Requests are answered, losses counted, and the worker leaves by itself (`worker_process` insists on exit code 0)."""
    with collector(answer) as one:
        sets = ("--set", f"telemetry.otlp={one.address}", "--set", "telemetry.sample=100%", "--set", "worker.drain=1s")
        with worker_process(("--demo", *sets)) as addresses, grpc.insecure_channel(addresses.inference) as channel:
            ask(ReplayServiceStub(channel), 30)
            assert settle(20, lambda: dropped(addresses) >= 30)
            ask(ReplayServiceStub(channel), 5)


def test_a_slow_collector_gets_everything_by_and_by() -> None:
    """Each call takes half a second; nothing waits for it."""
    with collector(_slow) as one:
        sets = ("--set", f"telemetry.otlp={one.address}", "--set", "telemetry.sample=100%")
        with worker_process(("--demo", *sets)) as addresses:
            with grpc.insecure_channel(addresses.inference) as channel:
                ask(ReplayServiceStub(channel), 300)
            one.until(lambda spans: sum(span.message.kind == 2 for span in spans) == 300, 30)
            assert dropped(addresses) == 0


def test_a_collector_that_comes_back_gets_what_ends_after_that() -> None:
    """One warning for the outage, none for each call."""
    with collector(None) as gone:
        sets = ("--set", f"telemetry.otlp={gone.address}", "--set", "telemetry.sample=100%")
        with worker_process(("--demo", *sets)) as addresses, grpc.insecure_channel(addresses.inference) as channel:
            ask(ReplayServiceStub(channel), 3)
            assert settle(20, lambda: dropped(addresses) >= 3)
            with collecting(gone.address) as back:
                for _ in range(40):
                    ask(ReplayServiceStub(channel), 1)
                    time.sleep(0.1)
                    if back.spans:
                        break
                assert back.spans
