"""Listening on an address, or saying in one line why that can't be."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass

from service.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Listen:
    """An address, and the configuration key that it comes from. `host:port` (port 0 picks a free one) or `unix:PATH`."""

    key: str
    address: str


def bind(add_port: Callable[[str], int], listen: Listen) -> str:
    """Bind a gRPC server; returns the address with the port it got. Raises ConfigError, naming key and address.

    The address is tried with a plain socket first: gRPC would not say what is wrong with it, would take a socket file away from the
    process that listens on it, and would be content with one of the several addresses behind a host name.
    """
    problem = _unix_problem(listen.address) if listen.address.startswith("unix:") else _tcp_problem(listen.address)
    if problem:
        raise ConfigError(f"{listen.key}: can't listen on {listen.address}: {problem}")
    try:
        port = add_port(listen.address)
    except RuntimeError as error:
        raise ConfigError(f"{listen.key}: can't listen on {listen.address}: {error}") from error
    return listen.address if listen.address.startswith("unix:") else f"{listen.address.rpartition(':')[0]}:{port}"


def _unix_problem(address: str) -> str:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(address.removeprefix("unix:").removeprefix("//"))
        except (FileNotFoundError, ConnectionRefusedError):
            return ""  # no file, or one that a process which is gone has left
        except OSError as error:
            return error.strerror or str(error)
    return "it is in use"


def _tcp_problem(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal()):
        return "it is not HOST:PORT"
    problems = []
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    for family, kind, protocol, _, place in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "it is in use"
            problems.append(error.strerror or str(error))
    return problems[0] if len(problems) == len(found) else ""
