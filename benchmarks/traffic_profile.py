"""What the traffic profile brings and what trouble with its store costs, with real workers and a real Valkey.

python benchmarks/traffic_profile.py siblings [--seconds 120]   two workers serve a recorded trace, a third starts beside them
python benchmarks/traffic_profile.py poison [--seconds 120]     a worker with a profile of traffic that never comes, beside a clean one
python benchmarks/traffic_profile.py faults [--rounds 100]       p99 of requests while the store is broken, against the same without a fault
python benchmarks/traffic_profile.py attempts [--rounds 100]    what an attempt to reach a broken store costs the event loop
python benchmarks/traffic_profile.py flood [--shapes 10000]     so many shapes once each beside three hot ones
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, thread_time, time
from urllib.request import urlopen

import grpc
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cachepolicy.profile import KEPT, TrafficProfile, Workload, shape_of
from service import garbage
from service import profiling as profiling_module
from service.cli.traffic.trace import bundled
from service.profiling import PATIENCE_S, Profiling
from service.serving import Node
from service.stores.base import WINDOW_S, Window
from service.stores.opening import open_store
from service.stores.records import moment
from tests.harness import ask, running
from tests.process import Addresses, free_port, worker_process
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
            garbage.keep()  # as a worker does once it has started
            yield node


@dataclass(frozen=True, slots=True)
class Rig:
    """What a fault breaks."""

    server: Server
    profiling: Profiling
    slow: str  # the server's URL by way of a link that takes a tenth of a second each way


@asynccontextmanager
async def nothing(_: Rig) -> AsyncIterator[None]:
    """No fault."""
    yield


@asynccontextmanager
async def store_at(rig: Rig, url: str) -> AsyncIterator[None]:
    """The worker's store is elsewhere."""
    usual, rig.profiling.store = rig.profiling.store, open_store(url, Path(), lambda: None)
    yield
    other, rig.profiling.store = rig.profiling.store, usual
    if other is not None:
        await other.close()


@asynccontextmanager
async def killed(rig: Rig) -> AsyncIterator[None]:
    """Nobody listens any more."""
    rig.server.kill()
    yield
    rig.server.start()


@asynccontextmanager
async def emptied(rig: Rig) -> AsyncIterator[None]:
    """Connections end, nothing is left."""
    rig.server.kill()
    rig.server.start()
    yield


@asynccontextmanager
async def frozen(rig: Rig) -> AsyncIterator[None]:
    """Connections stay, nothing is answered."""
    with rig.server.frozen():
        yield


@asynccontextmanager
async def configured(rig: Rig, name: str, value: str, normal: str) -> AsyncIterator[None]:
    """A setting of the server, for a while; connections begin anew."""
    with rig.server.client() as client:
        client.config_set(name, value)
        client.client_kill_filter(_type="normal", skipme=True)
        yield
        client.config_set(name, normal)


@asynccontextmanager
async def replica(rig: Rig) -> AsyncIterator[None]:
    """Writes are refused."""
    command(rig.server, "REPLICAOF", "127.0.0.1", "1")
    yield
    command(rig.server, "REPLICAOF", "NO", "ONE")


@asynccontextmanager
async def other_type(rig: Rig) -> AsyncIterator[None]:
    """Somebody else's value lies under our key."""
    command(rig.server, "SET", INDEX, "x")
    yield
    command(rig.server, "DEL", INDEX)


@asynccontextmanager
async def not_valid(rig: Rig) -> AsyncIterator[None]:
    """Twenty of somebody's windows without a single valid record."""
    now = int(time() // WINDOW_S * WINDOW_S)
    members = {f"{moment(now)} garbage-{number}": now for number in range(20)}
    broken = ("not json", '{"model": "m"}', "[" * 500, '{"model": "m", "shape": {"batch": -1}}')
    with rig.server.client() as client:
        client.zadd(INDEX, members)
        for number, member in enumerate(members):
            told = {"@worker": f"garbage-{number}", "@window": moment(now), "@seconds": "nan"}
            client.hset(
                f"{INDEX}:{member.replace(' ', ':')}", mapping=told | {f"{text}{at}": "1e400" for at in range(20) for text in broken}
            )
        yield
        client.zrem(INDEX, *members)


@asynccontextmanager
async def other_version(rig: Rig) -> AsyncIterator[None]:
    """A thousand keys of a later schema."""
    with rig.server.client() as client:
        client.mset({f"{INDEX.replace(':1:', ':2:')}:{number}": "x" for number in range(1000)})
        yield
        client.delete(*client.keys("*:2:*"))


@asynccontextmanager
async def slow_link(rig: Rig) -> AsyncIterator[None]:
    """A tenth of a second each way."""
    async with store_at(rig, rig.slow):
        yield


RELAY = """
import asyncio, sys
from tests.valkey import SlowLink

async def relay():
    async with SlowLink(int(sys.argv[1])).up() as url:
        print(url, flush=True)
        await asyncio.Event().wait()

asyncio.run(relay())
"""


@contextmanager
def relayed(server: Server) -> Iterator[str]:
    """The URL of a slow link to it, by a process of its own."""
    words = [sys.executable, "-c", RELAY, str(server.port)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@asynccontextmanager
async def cancelled(rig: Rig) -> AsyncIterator[None]:
    """Reads that are given up at any moment; the next use is by a new connection."""
    store, rng = rig.profiling.store, random.Random(4)
    assert store is not None

    async def give_up() -> None:
        while True:
            task = asyncio.create_task(store.read(time()))
            await asyncio.sleep(rng.random() * 0.004)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(profiling_module.FLUSH_S)

    giving_up = asyncio.create_task(give_up())
    yield
    giving_up.cancel()


INDEX = "graphcache:{default}:1:traffic"
READS = 8  # so many writes come between two reads; in service a read comes with the start, and with each model that is loaded later
FAULTS: dict[str, Callable[[Rig], AbstractAsyncContextManager[None]]] = {
    "none (A against A)": nothing,
    "absent": lambda rig: store_at(rig, f"redis://127.0.0.1:{free_port()}"),
    "killed": killed,
    "frozen": frozen,
    "restarted empty": emptied,
    "READONLY": replica,
    "wrong password": lambda rig: configured(rig, "requirepass", "x", ""),
    "full (OOM)": lambda rig: configured(rig, "maxmemory", "1", "0"),
    "wrong-typed keys": other_type,
    "garbage": not_valid,
    "other schema version": other_version,
    "slow link (100 ms)": slow_link,
    "cancelled commands": cancelled,
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


async def reading(profiling: Profiling) -> None:
    """Reads again and again, as loads of models do while a worker serves."""
    while True:
        await asyncio.sleep(READS * profiling_module.FLUSH_S)
        await profiling.read_again()


async def faults(rounds: int, seconds: float, only: str, every_s: float) -> None:
    """Rounds with and without each fault take turns; the profile is written every so many seconds."""
    profiling_module.FLUSH_S = every_s
    with valkey() as server, relayed(server) as slow:
        async with worker_here(server.url) as node:
            rig = Rig(server, node.profiling, slow)
            background = [asyncio.create_task(node.profiling.run()), asyncio.create_task(reading(node.profiling))]
            await latencies(node, 1.0)
            chosen = {name: fault for name, fault in FAULTS.items() if re.search(only, name)}
            pairs: dict[str, list[tuple[list[float], list[float]]]] = {name: [] for name in chosen}
            delays = dict.fromkeys(chosen, 0.0)
            for number in range(rounds):
                for name, fault in chosen.items():
                    both: dict[bool, list[float]] = {}
                    for broken in (True, False) if number % 2 else (False, True):
                        async with (fault if broken else nothing)(rig):
                            rig.profiling.breaker.succeeded()
                            delay_s = await start(rig.profiling)
                            delays[name] = max(delays[name], delay_s if broken else 0.0)
                            rig.profiling.breaker.succeeded()  # so that the fault is met again, by requests
                            both[broken] = await latencies(node, seconds)
                    pairs[name].append((both[True], both[False]))
            print(
                "p99 with the fault over without, of all rounds and in the middle of the rounds (95 % intervals); a start waits for at most"
            )
            for name, found in pairs.items():
                pooled, middle = ratio_of(found, pooled_p99), ratio_of(found, median_p99)
                print(f"{name:20} {told(pooled)}  {told(middle)}  {delays[name]:.3f} s", flush=True)
            for task in background:
                task.cancel()


async def attempts(times: int, only: str) -> None:
    """What one attempt costs the event loop: its CPU time, which tells the same on a busy machine. A request waits no longer for it."""
    with valkey() as server, relayed(server) as slow:
        async with worker_here(server.url) as node:
            rig = Rig(server, node.profiling, slow)
            print("milliseconds of the event loop's CPU for one write and for one read, in the middle of all and at most")
            for name, fault in FAULTS.items():
                if not re.search(only, name) or name == "cancelled commands":  # which keeps the loop busy itself
                    continue
                writes: list[float] = []
                reads: list[float] = []
                for _ in range(times):
                    await ask(node, "prompts", {"x": torch.ones(3, 50)})
                    async with fault(rig):
                        for found, attempt in ((writes, rig.profiling.flush), (reads, rig.profiling.read_again)):
                            rig.profiling.breaker.succeeded()
                            began = thread_time()
                            await attempt()
                            found.append(1e3 * (thread_time() - began))
                print(f"{name:20} {median(writes):.2f} {max(writes):.2f}   {median(reads):.2f} {max(reads):.2f}", flush=True)


async def start(profiling: Profiling) -> float:
    """Seconds that a start would wait for the store."""
    profiling.patience_s, profiling.informed, started = PATIENCE_S, False, perf_counter()
    for _ in range(2):
        if not profiling.informed:
            await profiling.read()
    return perf_counter() - started


def told(ratio: tuple[float, float, float]) -> str:
    """With its interval."""
    return f"{ratio[0]:.3f} ({ratio[1]:.3f} to {ratio[2]:.3f})"


Pairs = list[tuple[list[float], list[float]]]


def pooled_p99(pairs: Pairs) -> float:
    """The p99 of all rounds with the fault over that of all without."""
    with_it, without = ([value for one in pairs for value in one[at]] for at in (0, 1))
    return percentile(with_it, 0.99) / percentile(without, 0.99)


def median_p99(pairs: Pairs) -> float:
    """The p99 of a round with the fault over that of the round beside it, in the middle of all: bursts of other work count once."""
    return median(percentile(with_it, 0.99) / percentile(without, 0.99) for with_it, without in pairs)


def ratio_of(pairs: Pairs, ratio: Callable[[Pairs], float]) -> tuple[float, float, float]:
    """A ratio and its 95 % interval: rounds are drawn anew a thousand times."""
    rng = random.Random(1)
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
    """One of the five."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["siblings", "poison", "faults", "attempts", "flood"])
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", default="", help="faults whose name matches this")
    parser.add_argument("--every", type=float, default=0.25, help="seconds between two writes; 5 in service")
    parser.add_argument("--shapes", type=int, default=10_000)
    asked = parser.parse_args()
    match asked.what:
        case "siblings":
            siblings(asked.seconds or 120.0)
        case "poison":
            poison(asked.seconds or 120.0)
        case "faults":
            asyncio.run(faults(asked.rounds, asked.seconds or 0.5, asked.only, asked.every))
        case "attempts":
            asyncio.run(attempts(asked.rounds, asked.only))
        case _:
            asyncio.run(flood(asked.shapes))


if __name__ == "__main__":
    main()
