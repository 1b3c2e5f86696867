"""What the traffic profile brings and what trouble with its store costs, with real workers and a real Valkey.

python benchmarks/traffic_profile.py siblings [--seconds 120]   two workers serve a recorded trace, a third starts beside them
python benchmarks/traffic_profile.py poison [--seconds 120]     a worker with a profile of traffic that never comes, beside a clean one
python benchmarks/traffic_profile.py faults [--rounds 30]       p99 of requests while the store is broken, against the same without a fault
python benchmarks/traffic_profile.py flood [--shapes 10000]     so many shapes once each beside three hot ones
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from time import monotonic, perf_counter, time
from typing import Any
from urllib.request import urlopen

import grpc
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cachepolicy.profile import KEPT, TrafficProfile, Workload, shape_of
from service import profiling as profiling_module
from service.cli.traffic.trace import bundled
from service.profiling import PATIENCE_S, Profiling
from service.serving import Node
from service.stores.base import WINDOW_S, Window
from service.stores.opening import open_store
from tests.harness import ask, running
from tests.process import Addresses, worker_process
from tests.samples import sample
from tests.valkey import Server, command, valkey

# Hardly any arithmetic after a while of other work, which a recording leaves out: a graph pays on every machine.
STEP = """
from time import sleep
from torch import nn

class Step(nn.Module):
    def forward(self, x):
        sleep(0.002)
        return x * 2.0 + 1.0

def make_model():
    return Step().eval()
"""
MODELS = ("tokens", "prompts")
CONFIG = """
worker: {{allowed_factories: ["file:{folder}/*.py"], device: cpu}}
cache: {{budget: 64MiB}}
models:
  - name: tokens
    factory: file:{folder}/step.py
    rows: dependent
    inputs: {{x: {{datatype: FP32, shape: [batch, 8]}}}}
    outputs: {{output: {{datatype: FP32, shape: [batch, 8]}}}}
    axes: {{batch: {{max: 64}}}}
  - name: prompts
    factory: file:{folder}/step.py
    rows: dependent
    inputs: {{x: {{datatype: FP32, shape: [batch, seq]}}}}
    outputs: {{output: {{datatype: FP32, shape: [batch, seq]}}}}
    axes: {{batch: {{max: 64}}, seq: {{max: 512, buckets: [32, 64, 96, 128, 192, 256, 384, 512]}}}}
"""


@contextmanager
def configuration() -> Iterator[Path]:
    """A file with both models."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "step.py").write_text(STEP)
        file = Path(folder, "worker.yaml")
        file.write_text(CONFIG.format(folder=folder))
        yield file


def options(*sets: str) -> tuple[str, ...]:
    """Overrides as the command line takes them."""
    return tuple(word for one in sets for word in ("--set", one))


@contextmanager
def worker(file: Path, *sets: str) -> Iterator[tuple[Addresses, float]]:
    """A worker process, and when it was started."""
    started = monotonic()
    with worker_process(("-c", str(file), *options("cache.prewarm.graphs=32", *sets))) as addresses:
        yield addresses, started


def await_start(addresses: Addresses) -> None:
    """Until the prewarm is over."""
    with grpc.insecure_channel(addresses.probe) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for reply in health.Watch(health_pb2.HealthCheckRequest(service="startup")):
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return


def metrics(addresses: Addresses) -> str:
    """What Prometheus would scrape."""
    with urlopen(f"http://{addresses.metrics}/metrics") as page:
        return str(page.read(), "utf-8")


def drive(addresses: Addresses, seconds: float) -> float:
    """The recorded trace for so long; the share of requests that was replayed."""
    words = ["replay-trace", str(bundled()), "--seconds", str(seconds), "--json", "--address", addresses.inference]
    words += [word for model in MODELS for word in ("--model", model)]
    done = subprocess.run(
        [sys.executable, "-m", "service", *words], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return float(json.loads(done.stdout)["hit_ratio"])


def together(workers: list[Addresses], seconds: float) -> list[float]:
    """The same traffic for several workers at once."""
    with ThreadPoolExecutor(len(workers)) as pool:
        return list(pool.map(lambda one: drive(one, seconds), workers))


def siblings(seconds: float) -> None:
    """How ready a third worker is."""
    with valkey() as server, configuration() as file, ExitStack() as stack:
        setting = f"profile_store={server.url}"
        first = [stack.enter_context(worker(file, setting))[0] for _ in range(2)]
        for one in first:
            await_start(one)
        together(first, seconds)
        third, started = stack.enter_context(worker(file, setting))
        listening = monotonic()
        await_start(third)
        ready = monotonic()
        text = metrics(third)
        captures = sample(text, "graphcache_prewarm_seconds")
        graphs = sample(text, 'graphcache_prewarm_graphs{state="captured"}')
        refused = sample(text, 'graphcache_prewarm_graphs{state="refused"}')
        ratios = together([*first, third], 10.0)
        print(f"two workers served the trace for {seconds:.0f} s; the third: imports and loads {listening - started:.1f} s,")
        print(
            f"ready {ready - listening:.2f} s after that, of which captures {captures:.2f} s ({graphs:.0f} graphs, {refused:.0f} refused)"
        )
        print("replayed in the 10 s after that, the same traffic at once:", ", ".join(f"{ratio:.1%}" for ratio in ratios))
        print(f"the third against the better of the others: {ratios[2] / max(ratios[:2]):.3f}")


async def seed(setting: str, counts: dict[tuple[Workload, int], float]) -> None:
    """Traffic of batches that somebody else is said to have had."""
    store = open_store(setting, Path(), lambda: None)
    assert store is not None
    start = int(time() // WINDOW_S * WINDOW_S)
    traffic = TrafficProfile(float(start))
    for (workload, batch), runs in counts.items():
        traffic.note(workload, shape_of({"batch": batch} if workload.model == "tokens" else {"batch": batch, "seq": 512}), start, runs)
    traffic.watch(600.0, start)
    await store.write([Window(start, "poisoner", traffic)], [], time())
    await store.close()


def poison(seconds: float) -> None:
    """What a wrong profile costs, and whether it heals."""
    with valkey() as server, configuration() as file, ExitStack() as stack:
        wrong = {(Workload("prompts"), batch): 1e6 * batch for batch in range(33, 65)}
        wrong |= {(Workload("tokens"), 1): 1e9}
        asyncio.run(seed(server.url, wrong))
        clean, _ = stack.enter_context(worker(file, "profile_store=none"))
        await_start(clean)
        poisoned, _ = stack.enter_context(worker(file, f"profile_store={server.url}"))
        listening = monotonic()
        await_start(poisoned)
        print(f"the poisoned one was ready {monotonic() - listening:.2f} s after listening, at most 20 s are allowed")
        for name, length in (("first 10 s", 10.0), (f"until {seconds:.0f} s", seconds - 10.0), ("10 s after that", 10.0)):
            one, other = together([clean, poisoned], length)
            print(f"{name}: replayed {one:.1%} clean, {other:.1%} poisoned")


# -- faults


@asynccontextmanager
async def worker_here(setting: str, *, captures: bool = False) -> AsyncIterator[Node]:
    """A worker in this process."""
    with configuration() as file:
        sets = [f"profile_store={setting}", f"worker.state_dir={file.parent}", f"cache.capture.background={str(captures).lower()}"]
        async with running("cpu", file.read_text(), sets) as node:
            yield node


@contextmanager
def nothing(_: Server) -> Iterator[None]:
    """No fault."""
    yield


@contextmanager
def killed(server: Server) -> Iterator[None]:
    """Nobody listens."""
    server.kill()
    yield
    server.start()


@contextmanager
def configured(server: Server, name: str, value: str, normal: str) -> Iterator[None]:
    """A setting of the server, for a while; connections begin anew."""
    with server.client() as client:
        client.config_set(name, value)
        client.client_kill_filter(_type="normal", skipme=True)
        yield
        client.config_set(name, normal)


@contextmanager
def replica(server: Server) -> Iterator[None]:
    """Writes are refused."""
    command(server, "REPLICAOF", "127.0.0.1", "1")
    yield
    command(server, "REPLICAOF", "NO", "ONE")


@contextmanager
def other_type(server: Server) -> Iterator[None]:
    """Somebody else's value lies under our key."""
    command(server, "SET", "graphcache:{default}:1:traffic", "x")
    yield
    command(server, "DEL", "graphcache:{default}:1:traffic")


FAULTS: dict[str, Callable[[Server], AbstractContextManager[Any]]] = {
    "none (A against A)": nothing,
    "killed": killed,
    "frozen": lambda server: server.frozen(),
    "READONLY": replica,
    "wrong password": lambda server: configured(server, "requirepass", "x", ""),
    "full (OOM)": lambda server: configured(server, "maxmemory", "1", "0"),
    "WRONGTYPE": other_type,
}


async def latencies(node: Node, seconds: float) -> list[float]:
    """One request after the other, a few milliseconds apart."""
    found, end = [], perf_counter() + seconds
    values = {"x": torch.ones(3, 50)}
    while perf_counter() < end:
        started = perf_counter()
        await ask(node, "prompts", values)
        found.append(perf_counter() - started)
        await asyncio.sleep(0.001)
    return found


def percentile(values: list[float], share: float) -> float:
    """By rank."""
    return sorted(values)[int(share * (len(values) - 1))]


async def faults(rounds: int, seconds: float, only: str) -> None:
    """Rounds with and without the fault take turns. The profile is written ten times as often as it is in service."""
    profiling_module.FLUSH_S = 0.5
    with valkey() as server:
        async with worker_here(server.url) as node:
            profiling: Profiling = node.profiling
            writing = asyncio.create_task(profiling.run())
            await latencies(node, 1.0)
            for name, fault in FAULTS.items():
                if only not in name:
                    continue
                pairs, delays = [], []
                for number in range(rounds):
                    both: dict[bool, list[float]] = {}
                    for broken in (True, False) if number % 2 else (False, True):
                        profiling.breaker.succeeded()
                        with (fault if broken else nothing)(server):
                            if broken:
                                profiling.patience_s = PATIENCE_S
                                started = perf_counter()
                                await profiling.read()
                                await profiling.read()
                                delays.append(perf_counter() - started)
                            both[broken] = await latencies(node, seconds)
                    pairs.append((both[True], both[False]))
                ratio, low, high = ratio_of(pairs)
                waited = f"a start waits {max(delays):.3f} s at most"
                print(f"{name:20} p99 with / without {ratio:.3f} (95 % interval {low:.3f} to {high:.3f}); {waited}")
            writing.cancel()


def ratio_of(pairs: list[tuple[list[float], list[float]]]) -> tuple[float, float, float]:
    """The p99 of all rounds with the fault over that of all without, and its interval: rounds are drawn anew a thousand times."""
    rng = random.Random(1)

    def ratio(chosen: list[tuple[list[float], list[float]]]) -> float:
        with_it, without = ([value for one in chosen for value in one[at]] for at in (0, 1))
        return percentile(with_it, 0.99) / percentile(without, 0.99)

    drawn = sorted(ratio(rng.choices(pairs, k=len(pairs))) for _ in range(1000))
    return ratio(pairs), drawn[25], drawn[974]


# -- a flood of shapes


async def flood(shapes: int) -> None:
    """What is captured, kept and written."""
    with valkey() as server:
        async with worker_here(server.url, captures=True) as node:
            hot = [{"batch": 4, "seq": 100}, {"batch": 8, "seq": 300}, {"batch": 1, "seq": 77}]
            cold = [(1 + number % 60, 1 + number // 60) for number in range(shapes)]
            random.Random(3).shuffle(cold)
            for sizes in hot:
                await ask(node, "prompts", {"x": torch.ones(sizes["batch"], sizes["seq"])})
            before, empty = resident(), memory(server)
            for number, (batch, seq) in enumerate(cold):
                await ask(node, "prompts", {"x": torch.ones(batch, seq)})
                sizes = hot[number % 3]
                await ask(node, "prompts", {"x": torch.ones(sizes["batch"], sizes["seq"])})
                if number % 500 == 0:
                    await node.profiling.flush()
            await node.profiling.flush()
            outcomes = [(await ask(node, "prompts", {"x": torch.ones(s["batch"], s["seq"])})).outcome for s in hot]
            paths = [f"{one.path} ({one.reason} {one.detail})" if one.reason else str(one.path) for one in outcomes]
            graphs, progress = len(node.capturer.cache), len(node.capturer.progress())
            print(f"{shapes} shapes once each beside 3 hot ones, which run by {', '.join(paths)}")
            print(f"{graphs} graphs, {progress} other keys known")
            fields = [int(str(command(server, "HLEN", key))) for key in names(server)]
            print(
                f"in the store: {sum(fields)} fields in {len(fields)} windows (at most {sum(KEPT)} shapes and 5 more each), "
                f"{(memory(server) - empty) / 1024:.0f} KiB of the server's memory"
            )
            print(f"the worker's resident memory grew by {(resident() - before) / 2**20:.1f} MiB")
            await node.profiling.read()
            rates = node.profiling.others.rates(Workload("prompts"))
            exact = [rates.get(shape_of(sizes), 0.0) for sizes in hot]
            tally = node.profiling.others.tallies[Workload("prompts")]
            print(
                f"the hot ones' share as stored: {', '.join(f'{rate / sum(rates.values()):.1%}' for rate in exact)} (true 16.7 % each), "
                f"a count lacks {tally.error:.0f} of {tally.total:.0f} at most"
            )


def resident() -> int:
    """Bytes of this process's resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def memory(server: Server) -> int:
    """Bytes of the server's data."""
    with server.client() as client:
        return int(client.info("memory")["used_memory_dataset"])


def names(server: Server) -> list[str]:
    """Keys of windows."""
    with server.client() as client:
        return [key for key in client.scan_iter() if ":traffic:" in key]


def main() -> None:
    """One of the four."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["siblings", "poison", "faults", "flood"])
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default="", help="faults whose name has this")
    parser.add_argument("--shapes", type=int, default=10_000)
    asked = parser.parse_args()
    match asked.what:
        case "siblings":
            siblings(asked.seconds or 120.0)
        case "poison":
            poison(asked.seconds or 120.0)
        case "faults":
            asyncio.run(faults(asked.rounds, asked.seconds or 1.0, asked.only))
        case _:
            asyncio.run(flood(asked.shapes))


if __name__ == "__main__":
    main()
