"""A worker that is told to stop while clients send one request after the other."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from pathlib import Path

import grpc

from service.pb.graphcache.v1 import replay_pb2
from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceStub
from tests.harness import MODULES
from tests.process import FREE_PORTS, UNPREPARED

REQUEST = replay_pb2.ReplayRequest(model="affine", inputs=[replay_pb2.Tensor(name="input", datatype="FP32", shape=(1, 4), data=bytes(16))])


async def test_clients_of_a_worker_that_leaves_are_told_unavailable(tmp_path: Path) -> None:
    """Two hundred of them on six connections: an answer or UNAVAILABLE, never CANCELLED; and the exit code is 0."""
    config = tmp_path / "worker.yaml"
    config.write_text(f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
models:
  - {{name: affine, factory: "file:{MODULES}/affine.py", axes: {{batch: {{max: 8}}}}}}
""")
    arguments = ["-c", str(config), "--set", f"worker.state_dir={tmp_path}", *FREE_PORTS, *UNPREPARED]
    codes: Counter[grpc.StatusCode] = Counter()
    warm, gone = asyncio.Event(), asyncio.Event()
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "service", "serve", *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().split()[1].removeprefix("inference=")
    channels = [grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(6)]

    async def client(channel: grpc.aio.Channel) -> None:
        while not gone.is_set():
            try:
                await ReplayServiceStub(channel).Replay(REQUEST)
                codes[grpc.StatusCode.OK] += 1
            except grpc.aio.AioRpcError as error:
                codes[error.code()] += 1
            if codes.total() >= 1000:
                warm.set()

    clients = [asyncio.create_task(client(channels[number % 6])) for number in range(200)]
    await warm.wait()
    process.send_signal(signal.SIGTERM)
    code = await process.wait()
    gone.set()
    await asyncio.gather(*clients)
    for channel in channels:
        await channel.close(None)
    assert code == 0
    assert codes.keys() == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}, codes
