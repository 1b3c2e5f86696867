"""The metrics port: /metrics, /healthz and the status page, in threads of its own.

What it answers: `/` (the page; it reads `/events`, server-sent events, and `/status.json`), `/metrics`, `/healthz`; anything else is 404.
"""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from importlib import resources
from socketserver import ThreadingMixIn
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from service.errors import ConfigError
from service.telemetry.encoding import as_json
from service.telemetry.instruments import CONTENT_TYPE, OPENMETRICS_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket
    from wsgiref.types import StartResponse, WSGIEnvironment

    from service.snapshot import Entry, Snapshot
    from service.telemetry.instruments import Registry
    from service.telemetry.journal import Journal

log = logging.getLogger(__name__)

CONNECTIONS = 32  # at a time; more are closed at once
LISTENERS = 8  # of /events at a time; more are told to come back later
ENTRIES = 100  # the newest ones that a page is told of at once

_IDLE_S = 10.0  # for a request to arrive
_EVERY_S = 0.5  # between two looks for what is new
_JSON = "application/json; charset=utf-8"
_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_HEADERS = [
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "default-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'"),
]


class View:
    """What the port tells of a worker. Called from any thread."""

    def __init__(
        self,
        registry: Registry,
        journal: Journal,
        snapshot: Callable[[], Snapshot],
        ready: Callable[[], bool],
        alarms: Callable[[], dict[str, str]],
    ) -> None:
        self.registry = registry
        self._journal = journal
        self._snapshot = snapshot
        self._ready = ready
        self._alarms = alarms
        self._lock = threading.Lock()
        self._status = "", -_EVERY_S  # as JSON, and when it was taken

    def status(self) -> str:
        """The snapshot as JSON; taken once for all who ask within half a second."""
        with self._lock:
            text, at = self._status
            if monotonic() - at >= _EVERY_S:
                text = as_json(self._snapshot())
                self._status = text, monotonic()
            return text

    def health(self) -> tuple[bool, str]:
        """Whether the worker serves, and the details. An alarm makes nothing unhealthy: a restart would not help."""
        ready = self._ready()
        return ready, as_json({"status": "serving" if ready else "not serving", "graphs_effectively_off": self._alarms()})

    def events(self, stopping: threading.Event) -> Iterator[bytes]:
        """Server-sent events: `status` every second, and `entries` as soon as requests ran eagerly or failed or graphs came and went."""
        number, beats = 0, 0
        yield b"retry: 2000\n\n"
        while True:
            new: list[Entry] = self._journal.since(number, replays=False)
            if new:
                number = new[-1].number
                yield f"event: entries\ndata: {as_json(new[-ENTRIES:])}\n\n".encode()
            if beats % 2 == 0:
                yield f"event: status\ndata: {self.status()}\n\n".encode()
            beats += 1
            if stopping.wait(_EVERY_S):
                return


class _Site:
    """The application behind the port."""

    def __init__(self, view: View, stopping: threading.Event) -> None:
        self._view = view
        self._stopping = stopping
        self._listeners = threading.BoundedSemaphore(LISTENERS)
        folder = resources.files("service.telemetry") / "page"
        self._files = {path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _PAGE.items()}

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        try:
            return self._answer(environ, start)
        except Exception:
            log.exception("%s can't be answered", environ["PATH_INFO"])
            return _answer(start, HTTPStatus.INTERNAL_SERVER_ERROR, b"see the worker's log\n")

    def _answer(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _answer(start, HTTPStatus.METHOD_NOT_ALLOWED, b"only GET\n", headers=[("Allow", "GET, HEAD")])
        match environ["PATH_INFO"]:
            case "/metrics":
                openmetrics = "application/openmetrics-text" in environ.get("HTTP_ACCEPT", "")
                text = self._view.registry.text(openmetrics=openmetrics)
                return _answer(start, HTTPStatus.OK, text.encode(), OPENMETRICS_TYPE if openmetrics else CONTENT_TYPE)
            case "/healthz":
                ready, details = self._view.health()
                return _answer(start, HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE, details.encode(), _JSON)
            case "/status.json":
                return _answer(start, HTTPStatus.OK, self._view.status().encode(), _JSON)
            case "/events":
                return self._listen(start)
            case path if path in self._files:
                body, kind = self._files[path]
                return _answer(start, HTTPStatus.OK, body, kind)
            case _:
                return _answer(start, HTTPStatus.NOT_FOUND, b"there is /, /metrics, /healthz and /status.json\n")

    def _listen(self, start: StartResponse) -> Iterable[bytes]:
        if not self._listeners.acquire(blocking=False):
            text = f"{LISTENERS} clients listen already\n".encode()
            return _answer(start, HTTPStatus.SERVICE_UNAVAILABLE, text, headers=[("Retry-After", "5")])
        start("200 OK", [*_HEADERS, ("Content-Type", "text/event-stream")])
        return self._events()

    def _events(self) -> Iterator[bytes]:
        try:
            yield from self._view.events(self._stopping)
        finally:
            self._listeners.release()


def _answer(
    start: StartResponse,
    status: HTTPStatus,
    body: bytes,
    kind: str = "text/plain; charset=utf-8",
    headers: Iterable[tuple[str, str]] = (),
) -> list[bytes]:
    start(f"{status.value} {status.phrase}", [*_HEADERS, *headers, ("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_address = True  # not reuse_port: a second worker on the port is an error

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(*arguments)

    def process_request(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """A thread for the connection, or none where too many are open."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """What the thread does."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """A client that goes away is not worth a traceback."""


class _Quiet(WSGIRequestHandler):
    timeout = _IDLE_S

    def get_stderr(self) -> TextIO:
        """A client that stops reading is not worth a traceback; what fails here is logged by the site."""
        return io.StringIO()

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not worth a log line."""


class MetricsServer:
    """Serves a worker's metrics and its status page."""

    def __init__(self, view: View) -> None:
        self._stopping = threading.Event()
        self._site = _Site(view, self._stopping)
        self._server: WSGIServer | None = None

    def start(self, address: str) -> str:
        """Listen on host:port; returns the address with its real port ("" where it is off). Raises ConfigError where it is taken."""
        if not address:
            return ""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        if not port.isdecimal():
            raise ConfigError(f"worker.metrics_listen: {address}: must be host:port")
        try:
            self._server = make_server(host, int(port), self._site, server_class=_Server, handler_class=_Quiet)
        except OSError as error:
            raise ConfigError(f"worker.metrics_listen: {address}: {error.strerror or error}") from None
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
        return f"{host}:{self._server.server_port}"

    def stop(self) -> None:
        """Stop listening."""
        self._stopping.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
