"""Certificates made for a test by `openssl`, and an end that speaks TLS before a server that does not."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.process import free_port
from tests.valkey import relay


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates that are good for a day."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._own = Signed(folder / f"{name}.pem", folder / f"{name}.key")
        self._openssl(["req", "-x509", "-subj", f"/CN={name}", "-addext", "basicConstraints=critical,CA:TRUE"], self._own)

    @property
    def certificate(self) -> Path:
        """What whoever trusts this authority has to have."""
        return self._own.certificate

    def sign(self, name: str, alternatives: str = "IP:127.0.0.1,DNS:localhost") -> Signed:
        """A certificate for a server at these places, or for a client."""
        made = Signed(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        signer = ["-CA", str(self._own.certificate), "-CAkey", str(self._own.key)]
        self._openssl(["req", "-x509", "-subj", f"/CN={name}", "-addext", f"subjectAltName={alternatives}", *signer], made)
        return made

    def _openssl(self, words: list[str], made: Signed) -> None:
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
        command = ["openssl", *words, *key, "-keyout", str(made.key), "-out", str(made.certificate)]
        subprocess.run(command, check=True, capture_output=True)


@asynccontextmanager
async def tls_end(target: int, own: Signed, clients: Path | None = None) -> AsyncIterator[int]:
    """The port of an end that speaks TLS and passes what it is told on to `target`; `clients`: whose certificates clients must have."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=clients)
    context.load_cert_chain(own.certificate, own.key)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    port = free_port()
    server = await asyncio.start_server(lambda reader, writer: relay(reader, writer, target), "127.0.0.1", port, ssl=context)
    try:
        yield port
    finally:
        server.close()
