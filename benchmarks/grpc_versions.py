"""Which grpcio to lock: grpc.aio on uvloop echoes 1 KiB, each version in an environment of its own, in interleaved rounds.

    make bench-grpc ARGS='--rounds 5'

Server and client are the same version and share the machine, so trust the server's CPU time per call and ratios within a run. Result and
choice: docs/decisions/0002-grpcio-version.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
import uvloop

VERSIONS = ("1.75.1", "1.76.0", "1.78.0", "1.80.0", "1.84.0")
PAYLOAD = bytes(1024)
METHOD = "/echo.Echo/Echo"


async def serve() -> None:
    """Echo until stdin closes, and answer each line there with the CPU seconds this process has used."""

    async def echo(request: bytes, _context: object) -> bytes:
        return request

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(time.process_time(), flush=True)
    await server.stop(None)


async def load(port: int, concurrency: int, seconds: float) -> None:
    """Call in closed loops and print calls per second and the median latency in µs."""
    latencies: list[float] = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(METHOD, None, None)
        await call(PAYLOAD)
        end = time.perf_counter() + seconds

        async def loop() -> None:
            while (started := time.perf_counter()) < end:
                await call(PAYLOAD)
                latencies.append(time.perf_counter() - started)

        await asyncio.gather(*(loop() for _ in range(concurrency)))
    print(json.dumps({"calls": len(latencies), "p50_us": statistics.median(latencies) * 1e6}))


class Version:
    """One grpcio in an environment of its own, with a running server."""

    def __init__(self, version: str, folder: Path) -> None:
        self.version = version
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        self._python = str(folder / "bin" / "python")
        subprocess.run([self._python, "-m", "pip", "install", "-q", f"grpcio=={version}", "uvloop"], check=True)
        self._server = subprocess.Popen(
            [self._python, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._port = self._line()
        self.results: dict[int, list[tuple[float, float, float]]] = {1: [], 16: []}

    def measure(self, concurrency: int, seconds: float) -> None:
        """One round."""
        before = self._cpu_seconds()
        command = [self._python, __file__, "--load", self._port, "--concurrency", str(concurrency), "--seconds", str(seconds)]
        reply = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        cpu_us = (self._cpu_seconds() - before) / reply["calls"] * 1e6
        self.results[concurrency].append((reply["calls"] / seconds, reply["p50_us"], cpu_us))

    def close(self) -> None:
        """End the server."""
        self._server.communicate()

    def _cpu_seconds(self) -> float:
        assert self._server.stdin is not None
        self._server.stdin.write("\n")
        return float(self._line())

    def _line(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline().strip()


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", default=VERSIONS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--concurrency", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--load", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve or arguments.load:
        uvloop.run(serve() if arguments.serve else load(arguments.load, arguments.concurrency, arguments.seconds))
        return
    with tempfile.TemporaryDirectory() as folder:
        versions = [Version(version, Path(folder) / version) for version in arguments.versions]
        for _ in range(arguments.rounds):
            for concurrency in (1, 16):
                for version in versions:
                    version.measure(concurrency, arguments.seconds)
        for version in versions:
            version.close()
    print(f"medians of {arguments.rounds} rounds of {arguments.seconds:g} s, {os.cpu_count()} cores, Python {sys.version.split()[0]}\n")
    print("| grpcio | c1 p50 µs | c1 server CPU µs | c16 calls/s | c16 server CPU µs |\n|---|---:|---:|---:|---:|")
    for version in versions:
        one, many = ([statistics.median(column) for column in zip(*version.results[c], strict=True)] for c in (1, 16))
        print(f"| {version.version} | {one[1]:.0f} | {one[2]:.0f} | {many[0]:.0f} | {many[2]:.0f} |")


if __name__ == "__main__":
    main()
