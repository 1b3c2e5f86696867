"""Calls to a running worker, with every failure as one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import click
import grpc

from service.cli.options import Target
from service.pb.graphcache.v1.admin_pb2_grpc import AdminServiceStub
from service.pb.graphcache.v1.replay_pb2 import Parameter
from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceStub

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", -1),  # the worker's limit is the one that counts
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),  # a worker is reached directly
)
CALL_TIMEOUT_S = 30.0


class CallFailed(click.ClickException):
    """A call that the worker refused or that did not reach one. Exit code 1."""


class Status(Protocol):
    """What grpc's and grpc.aio's errors have in common."""

    def code(self) -> grpc.StatusCode:
        """The status code."""
        ...

    def details(self) -> str | None:
        """The message."""
        ...


def failure(address: str, error: Status) -> CallFailed:
    """One line that says what went wrong and where."""
    details = error.details() or ""
    if error.code() is grpc.StatusCode.UNAVAILABLE and "failed to connect" in details:
        return CallFailed(f"no worker answers at {address}")
    if error.code() is grpc.StatusCode.UNAVAILABLE and "DNS resolution failed" in details:
        return CallFailed(f"{address}: no such host")
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "message larger than max" in details:
        return CallFailed(f"{address}: the request is larger than the worker's worker.limits.message: {details}")
    return CallFailed(f"{address}: {error.code().name}: {details}")


def _channel(address: str) -> grpc.Channel:
    return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)


@contextmanager
def replay_service(address: str) -> Iterator[ReplayServiceStub]:
    """The worker's replay service; errors of calls inside become CallFailed."""
    with _channel(address) as channel, _one_line(address):
        yield ReplayServiceStub(channel)


@contextmanager
def admin_service(address: str) -> Iterator[AdminServiceStub]:
    """The worker's admin service; errors of calls inside become CallFailed."""
    with _channel(address) as channel, _one_line(address):
        yield AdminServiceStub(channel)


@contextmanager
def _one_line(address: str) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise failure(address, error) from None


def target_fields(target: Target) -> dict[str, Any]:
    """The fields that requests about one model, variant and shape have in common."""
    return {
        "model": target.model,
        "version": target.version,
        "shape": target.shape,
        "parameters": wire_parameters(target.parameters),
    }


def wire_parameters(parameters: Mapping[str, str]) -> dict[str, Parameter]:
    """Request parameters as the protocol carries them."""
    return {name: Parameter(string_value=value) for name, value in parameters.items()}
