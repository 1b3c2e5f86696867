"""From process start to ready with 32 hot buckets of a large decode step: import, load, first eager reply, captures, ready.

    python -m benchmarks.start [--device cuda:0] [--small]

The traffic of siblings lies in the profile store before the first start, which knows nothing of costs; the second start finds what the
first has measured. `--small` takes the decode step of the demo, for a CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic, sleep, time
from urllib.request import urlopen

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cachepolicy.profile import TrafficProfile, Workload, shape_of
from service.pb.graphcache.v1.replay_pb2 import ReplayRequest, Tensor
from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceStub
from service.stores.base import WINDOW_S, Window
from service.stores.opening import open_store
from tests.process import Addresses, worker_process
from tests.samples import sample

LARGE = (
    "{layers: 16, width: 2048, heads: 32, kv_heads: 8, hidden: 8192, vocabulary: 128256, dtype: bfloat16, context: 256, slots: 64,"
    " scratch: 8, logits: false}"
)
SMALL = "{context: 256, slots: 64, scratch: 8, logits: false}"
BUCKETS = list(range(2, 65, 2))
CONFIGURATION = """
worker: {{state_dir: {folder}, device: "{device}"}}
cache: {{budget: 4GiB, prewarm: {{graphs: 32}}}}
models:
  - name: decode
    factory: service.models.demo:decode
    args: {args}
    inputs:
      tokens: {{datatype: INT64, shape: [batch], range: [0, 4095]}}
      slots: {{datatype: INT64, shape: [batch]}}
      positions: {{datatype: INT64, shape: [batch], range: [0, 255]}}
    outputs: {{next_token: {{datatype: INT64, shape: [batch]}}}}
    axes: {{batch: {{max: 64, buckets: {buckets}}}}}
    rows: independent
    state: [{{buffer: keys, index_input: slots, scratch: 8}}, {{buffer: values, index_input: slots, scratch: 8}}]
    phase: decode
"""
PHASES = ("warm_up", "capture", "instantiate", "first_launch", "verify", "measure")


async def seed(folder: Path) -> None:
    """Traffic of all buckets that siblings are said to have had."""
    store = open_store("sqlite", folder, lambda: None)
    assert store is not None
    start = int(time() // WINDOW_S * WINDOW_S)
    traffic = TrafficProfile(float(start))
    for batch in BUCKETS:
        traffic.note(Workload("decode", phase="decode"), shape_of({"batch": batch}), start, 1e5)
    traffic.watch(600.0, start)
    await store.write([Window(start, "sibling", traffic)], [], time())
    await store.close()


def request() -> ReplayRequest:
    """A step of three sequences."""
    values = {"tokens": [5, 6, 7], "slots": [0, 1, 2], "positions": [0, 0, 0]}
    inputs = [Tensor(name=name, datatype="INT64", shape=[3], data=np.array(found, np.int64).tobytes()) for name, found in values.items()]
    return ReplayRequest(model="decode", inputs=inputs)


def await_reply(addresses: Addresses, found: list[float]) -> None:
    """Ask until there is an answer."""
    with grpc.insecure_channel(addresses.inference) as channel:
        while not found:
            with suppress(grpc.RpcError):
                ReplayServiceStub(channel).Replay(request(), timeout=5)
                found.append(monotonic())
            sleep(0.02)


def await_ready(addresses: Addresses) -> float:
    """When the prewarm was over."""
    with grpc.insecure_channel(addresses.probe) as channel:
        for reply in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="startup")):
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return monotonic()
    raise AssertionError("the worker ended before it was ready")


def start(file: Path, folder: Path) -> None:
    """One start, and what took how long."""
    replied: list[float] = []
    started = monotonic()
    with worker_process(("-c", str(file), "--set", f"worker.state_dir={folder}", "--set", "cache.prewarm.graphs=32")) as addresses:
        listening = monotonic()
        asking = Thread(target=await_reply, args=(addresses, replied))
        asking.start()
        ready = await_ready(addresses)
        asking.join()
        with urlopen(f"http://{addresses.metrics}/metrics") as page:
            text = str(page.read(), "utf-8")
        sleep(6.0)  # costs are written
    graphs = sample(text, 'graphcache_prewarm_graphs{state="captured"}')
    refused = sample(text, 'graphcache_prewarm_graphs{state="refused"}')
    at = {"listening": listening, "first eager reply": replied[0], "ready": ready}
    print(", ".join(f"{what} {when - started:.1f} s" for what, when in at.items()), "after the start")
    print(f"  {graphs:.0f} graphs, {refused:.0f} refused, in {sample(text, 'graphcache_prewarm_seconds'):.2f} s, of which")
    phases = {phase: sample(text, f'graphcache_capture_seconds_sum{{phase="{phase}"}}') for phase in PHASES}
    print("  " + ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in phases.items()))


def main() -> None:
    """Two starts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    for what in ("torch", "service.serving"):
        began = monotonic()
        subprocess.run([sys.executable, "-W", "ignore", "-c", f"import {what}"], check=True)
        print(f"import of {what} alone: {monotonic() - began:.1f} s")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "worker.yaml"
        args = SMALL if options.small else LARGE
        file.write_text(CONFIGURATION.format(folder=folder, device=options.device, args=args, buckets=BUCKETS))
        asyncio.run(seed(folder))
        print("with the traffic of siblings, and no costs:")
        start(file, folder)
        print("with costs, too:")
        start(file, folder)


if __name__ == "__main__":
    main()
