"""The metrics port: /metrics in a thread of its own."""

from __future__ import annotations

import threading
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from service.errors import ConfigError


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_address = True  # not reuse_port: a second worker on the port is an error


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not worth a log line."""


class MetricsServer:
    """Serves a registry for Prometheus."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._app = make_wsgi_app(registry)
        self._server: WSGIServer | None = None

    def start(self, address: str) -> str:
        """Listen on host:port; returns the address with its real port ("" where it is off). Raises ConfigError where it is taken."""
        if not address:
            return ""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        try:
            self._server = make_server(host, int(port), self._app, server_class=_Server, handler_class=_Quiet)
        except OSError as error:
            raise ConfigError(f"worker.metrics_listen: {address}: {error.strerror or error}") from None
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
        return f"{host}:{self._server.server_port}"

    def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
