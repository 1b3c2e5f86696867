"""The metrics port over a socket."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from cachepolicy.buckets import Bucket
from cachepolicy.reasons import FallbackReason
from service.errors import ConfigError
from service.snapshot import Decision, Load, Snapshot
from service.telemetry.http import LISTENERS, MetricsServer, View
from service.telemetry.instruments import Reading, Registry
from service.telemetry.journal import Journal

EMPTY = Snapshot("w", "0", "cpu", 0.0, 1.0, True, Load(0, 0, 0.0, 0.0, {}), 0, 0, 0, None, [], [], [], [])


class Port:
    """A server, and what it looks at."""

    def __init__(self) -> None:
        self.registry, self.journal = Registry(), Journal()
        self.ready, self.alarms = True, {"m": "all eager"}
        self.server = MetricsServer(View(self.registry, self.journal, lambda: EMPTY, lambda: self.ready, lambda: self.alarms))
        self.address = self.server.start("127.0.0.1:0")

    def free_listeners(self) -> int:
        """How many more may listen to events."""
        return self.server._site._listeners._value

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
        """One request."""
        with closing(http.client.HTTPConnection(self.address)) as connection:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    @contextmanager
    def listening(self) -> Iterator[http.client.HTTPResponse]:
        """A client of /events."""
        with closing(http.client.HTTPConnection(self.address)) as connection:
            connection.request("GET", "/events")
            yield connection.getresponse()


@pytest.fixture
def port() -> Iterator[Port]:
    """Stopped at the end."""
    found = Port()
    yield found
    found.server.stop()


def events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, object]]:
    """Name and data of each event."""
    name = ""
    while line := answer.readline().decode():
        if line.startswith("event: "):
            name = line[7:].strip()
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])


@pytest.mark.parametrize(
    ("accept", "kind"), [("", "text/plain"), ("application/openmetrics-text;version=1.0.0", "application/openmetrics-text")]
)
def test_a_scrape_gets_the_format_that_it_asks_for(port: Port, accept: str, kind: str) -> None:
    """The older text unless OpenMetrics is accepted."""
    port.registry.counter("c", "Count").of().inc()
    status, headers, body = port.get("/metrics", Accept=accept)
    assert (status, headers.get_content_type()) == (200, kind)
    assert b"c_total 1.0\n" in body
    assert body.endswith(b"# EOF\n") == (kind != "text/plain")


@pytest.mark.parametrize("path", ["/nope", "/metrics/", "/page/../http.py", "/%2e%2e/http.py"])
def test_unknown_paths_are_not_found(port: Port, path: str) -> None:
    """Nothing but what is listed."""
    assert port.get(path)[0] == 404


def test_only_reading_is_allowed(port: Port) -> None:
    """405 says what is."""
    status, headers, _ = port.get("/metrics", "POST")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_health_says_whether_requests_may_come_and_which_graphs_are_off(port: Port) -> None:
    """An alarm does not make the worker unhealthy: eager answers are right, and a restart would not help."""
    assert port.get("/healthz")[0] == 200
    port.ready = False
    status, _, body = port.get("/healthz")
    assert status == 503
    assert json.loads(body) == {"status": "not serving", "graphs_effectively_off": {"m": "all eager"}}


def test_a_listener_hears_of_a_fallback(port: Port) -> None:
    """The snapshot first; then the request, with its reason and the bucket it would have had."""
    with port.listening() as answer:
        heard = events(answer)
        assert next(heard)[0] == "status"
        port.journal.decided(Decision(0.0, "m", "1", "r", "", {"batch": 3}, "eager", FallbackReason.EVICTED, bucket=Bucket.of(batch=4)))
        name, entries = next(event for event in heard if event[0] == "entries")
    assert name == "entries"
    assert isinstance(entries, list)
    assert (entries[0]["reason"], entries[0]["bucket"]) == ("evicted", {"batch": 4})


def test_listeners_are_bounded_and_those_who_leave_make_room(port: Port) -> None:
    """One more than the limit is told to come back; scrapes go on meanwhile."""
    clients = [port.listening() for _ in range(LISTENERS)]
    answers = [client.__enter__() for client in clients]
    assert {answer.status for answer in answers} == {200}
    assert port.get("/events")[0] == 503
    assert port.get("/metrics")[0] == 200
    for client, answer in zip(clients, answers, strict=True):
        answer.close()
        client.__exit__(None, None, None)
    waiting = threading.Event()
    while True:  # a listener is missed when it is next written to
        with port.listening() as answer:
            if answer.status == 200:
                break
        waiting.wait(0.1)


def test_what_fails_is_logged_and_the_port_goes_on(port: Port, caplog: pytest.LogCaptureFixture) -> None:
    """500 without a word of the error to the client."""

    def broken() -> list[Reading]:
        raise RuntimeError("inside")

    port.registry.watch(broken)
    status, _, body = port.get("/metrics")
    assert status == 500
    assert b"inside" not in body
    assert [record.message for record in caplog.records] == ["/metrics can't be answered"]
    assert port.get("/healthz")[0] == 200


def test_a_client_that_stops_reading_is_dropped_in_silence(
    port: Port, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its place is free again, and nobody waited for it."""
    monkeypatch.setattr("service.telemetry.http._Quiet.timeout", 0.1)
    padding = Decision(0.0, "m", "1", "r" * 1_000_000, "", {}, "eager", FallbackReason.EVICTED)
    with closing(socket.create_connection(("127.0.0.1", int(port.address.rpartition(":")[2])))) as client:
        client.sendall(b"GET /events HTTP/1.0\r\n\r\n")
        while port.free_listeners() == LISTENERS:
            threading.Event().wait(0.01)
        for _ in range(20):
            port.journal.decided(replace(padding))
        while port.free_listeners() < LISTENERS:
            threading.Event().wait(0.01)
    assert capfd.readouterr().err == ""


def test_a_taken_port_and_an_address_without_a_port_are_one_line(port: Port) -> None:
    """The key is named."""
    for address in (port.address, "unix:/tmp/x"):
        with pytest.raises(ConfigError, match=r"worker\.metrics_listen: "):
            MetricsServer(View(port.registry, port.journal, lambda: EMPTY, lambda: True, dict)).start(address)
