"""Listening, limits, reflection, stopping."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from service.errors import ConfigError
from service.pb.graphcache.v1 import replay_pb2
from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceStub
from service.pb.inference import grpc_service_pb2 as pb
from service.rpc.address import Listen
from service.rpc.health import HealthState
from service.rpc.server import SERVICES, Limits, Servers
from tests.service.rpc.double import Echo, Observed, Recorder, listening, read


def request(rows: int = 1, request_id: str = "") -> replay_pb2.ReplayRequest:
    """A good request."""
    return replay_pb2.ReplayRequest(
        model="echo",
        id=request_id,
        inputs=[
            replay_pb2.Tensor(name="tokens", datatype="INT64", shape=(rows, 8), data=bytes(rows * 64)),
            replay_pb2.Tensor(name="scale", datatype="FP32", shape=(rows, 4), data=np.ones((rows, 4), np.float32).tobytes()),
        ],
    )


async def _start(address: str, *, admin: str = "127.0.0.1:0") -> None:
    servers = Servers(
        Echo(),
        Recorder(),
        Observed(),
        HealthState(SERVICES),
        listen=Listen("worker.listen", address),
        admin_listen=Listen("worker.admin_listen", admin),
    )
    try:
        await servers.start()
    finally:
        await servers.stop(0)


def test_importing_the_server_does_not_import_torch() -> None:
    """A front-end process must stay small."""
    code = "import service.rpc.server, sys; print(sorted({'torch', 'service.backends.cpu'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


async def test_address_in_use_is_named_with_its_key() -> None:
    """By another worker, which gRPC alone would share the port with."""
    async with listening() as node:
        with pytest.raises(ConfigError, match=rf"worker\.listen: can't listen on {node.address}: it is in use"):
            await _start(node.address)
        with pytest.raises(ConfigError, match=rf"worker\.admin_listen: can't listen on {node.address}: it is in use"):
            await _start("127.0.0.1:0", admin=node.address)


async def test_address_in_use_by_a_socket_that_shares_its_port_is_refused() -> None:
    """SO_REUSEPORT on the other side alone must not let us in."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ConfigError, match="it is in use"):
            await _start(f"127.0.0.1:{other.getsockname()[1]}")


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.0.0.1:http", "203.0.113.7:0", "no.such.host.invalid:1", ":99999", "", "unix:/no/such/dir/s"]
)
async def test_impossible_address_is_named(address: str) -> None:
    """Whatever is wrong with it, the line has key and address."""
    with pytest.raises(ConfigError, match=r"^worker\.listen: can't listen on " + address):
        await _start(address)


async def test_unix_socket_serves_and_is_not_taken_from_a_running_worker(tmp_path: Path) -> None:
    """A leftover file of a worker that is gone is no obstacle, a living one is."""
    path = tmp_path / "worker.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    async with listening(address=f"unix:{path}") as node:
        assert node.address == f"unix:{path}"
        assert (await node.replay.Replay(request())).model == "echo"
        with pytest.raises(ConfigError, match="it is in use"):
            await _start(f"unix:{path}")
        assert (await node.replay.Replay(request())).model == "echo"


@pytest.mark.parametrize("asked", ["inference", "admin"])
async def test_reflection_lists_the_services_of_each_port(asked: str) -> None:
    """As grpcurl asks; and the files behind them can be had."""
    async with listening() as node:
        channel = node.channel if asked == "inference" else node.admin_channel
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        queries = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="graphcache.v1.AdminService"),
        ]
        listed, file = [reply async for reply in stub.ServerReflectionInfo(iter(queries))]
        names = {service.name for service in listed.list_services_response.service}
        assert b"ListGraphs" in b"".join(file.file_descriptor_response.file_descriptor_proto)
    reflection = "grpc.reflection.v1alpha.ServerReflection"
    if asked == "inference":
        assert names == {"inference.GRPCInferenceService", "graphcache.v1.ReplayService", "grpc.health.v1.Health", reflection}
    else:
        assert names == {"graphcache.v1.AdminService", reflection}


async def test_more_calls_than_a_connection_may_have_wait_their_turn() -> None:
    """Twelve clients of one channel, four streams at a time: each sends its next call the moment it has its answer; none is refused."""
    async with listening(Limits(streams=4)) as node:

        async def client() -> int:
            for _ in range(150):
                await node.replay.Replay(request())
            return 150

        assert sum(await asyncio.gather(*(client() for _ in range(12)))) == 12 * 150


async def test_message_above_the_limit_is_refused_and_the_connection_lives() -> None:
    """Before the worker sees it."""
    async with listening(Limits(message=100_000)) as node:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await node.replay.Replay(request(2000))
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert node.worker.seen == []
        assert (await node.replay.Replay(request())).model == "echo"


async def test_reply_may_be_larger_than_the_limit_of_requests() -> None:
    """A request that just fits has a reply with an outcome on top; on a stream it must not end the stream."""
    asked = request(8, "large")
    message = replay_pb2.ReplayStreamRequest(request=asked)
    async with listening(Limits(message=message.ByteSize())) as node:
        reply = await node.replay.Replay(asked)
        assert reply.ByteSize() > message.ByteSize()
        stream = node.replay.ReplayStream(None)
        for _ in range(2):
            await stream.write(message)
            assert (await read(stream)).response.outputs[0].data == asked.inputs[0].data
        await stream.done_writing()


async def test_stop_finishes_what_is_in_flight_and_takes_nothing_new() -> None:
    """Unary calls and messages of streams are answered; the stream then ends with UNAVAILABLE, and so do new calls."""
    async with listening() as node:
        node.worker.gate = asyncio.Event()
        unary = node.replay.Replay(request(2))
        stream = node.replay.ReplayStream(None)
        await stream.write(replay_pb2.ReplayStreamRequest(request=request(3, "streamed")))
        await node.worker.until(2)
        stopping = asyncio.create_task(node.servers.stop(30))
        await asyncio.sleep(0)
        async with grpc.aio.insecure_channel(node.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ReplayServiceStub(channel).Replay(request())
        # grpc itself cancels a call that slips in while the port closes; the worker drains before that, and answers UNAVAILABLE
        assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        node.worker.gate.set()
        assert list((await unary).outputs[0].shape) == [2, 8]
        reply = await read(stream)
        assert (reply.id, list(reply.response.outputs[0].shape)) == ("streamed", [3, 8])
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        await stopping
        assert node.worker.cancelled == 0


async def test_stop_does_not_wait_for_an_idle_stream() -> None:
    """A client may hold a stream open for ever; the grace here is longer than any test."""
    async with listening() as node:
        stream = node.replay.ReplayStream(None)
        await stream.write(replay_pb2.ReplayStreamRequest(request=request(1, "a")))
        assert (await read(stream)).id == "a"
        await node.servers.stop(3600)
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE


async def test_stop_cancels_what_outlasts_the_grace() -> None:
    """The worker's `infer` is cancelled."""
    async with listening() as node:
        node.worker.gate = asyncio.Event()
        call = node.inference.ModelInfer(
            pb.ModelInferRequest(
                model_name="echo",
                inputs=[
                    pb.ModelInferRequest.InferInputTensor(name="tokens", datatype="INT64", shape=(1, 8)),
                    pb.ModelInferRequest.InferInputTensor(name="scale", datatype="FP32", shape=(1, 4)),
                ],
                raw_input_contents=[bytes(64), bytes(16)],
            )
        )
        await node.worker.until(1)
        await node.servers.stop(0.05)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        await node.worker.until(0)
        assert node.worker.cancelled == 1
