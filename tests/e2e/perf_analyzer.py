"""Drive the demo encoder with Triton's perf_analyzer, and fail on any error (`make perf-analyzer`).

Starts a worker of its own unless `--address` names one.
"""

from __future__ import annotations

import argparse
import re
import sys
from contextlib import nullcontext

from tests.e2e import triton
from tests.process import Addresses, worker_process

RUNS = {
    "unary, 1 in flight": ["--concurrency-range", "1"],
    "unary, 16 in flight": ["--concurrency-range", "16"],
    "async, 16 in flight": ["--concurrency-range", "16", "--async"],
    "stream, 16 in flight": ["--concurrency-range", "16", "--async", "--streaming"],
}
# Zeros are tokens, random bits are not. Any spread between windows will do: this is no benchmark.
COMMON = ["-i", "grpc", "--input-data", "zero", "-p", "1000", "-s", "999", "-r", "3", "--percentile", "99"]


def main() -> int:
    """Exit code 1 where a run had an error or no reply."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", help="of a running worker")
    parser.add_argument("--model", default="encoder")
    parser.add_argument("--shape", default="tokens:17", help="the sizes that requests choose, without the batch")
    chosen = parser.parse_args()
    failed = False
    with nullcontext(Addresses(chosen.address, "", "", "")) if chosen.address else worker_process() as addresses:
        for name, arguments in RUNS.items():
            done = triton.perf_analyzer(["-m", chosen.model, "-u", addresses.inference, "--shape", chosen.shape, *COMMON, *arguments])
            result = re.search(r"throughput: ([\d.]+) infer/sec, latency (\d+) usec", done.stdout)
            if done.returncode or result is None or float(result[1]) == 0:
                failed = True
                print(f"{name}: exit code {done.returncode}\n{done.stdout}", file=sys.stderr)
            else:
                print(f"{name}: {float(result[1]):.0f} requests/s, p99 {int(result[2]) / 1000:.1f} ms", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
