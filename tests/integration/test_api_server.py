"""The server under limits of the test's choice: clients that do not do their part."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from prefork_q.api.access import Access
from prefork_q.api.answers import Answer, Route
from prefork_q.api.application import Application
from prefork_q.api.breaker import Breaker
from prefork_q.api.health import ALIVE
from prefork_q.api.reading import Environ, read_body
from prefork_q.api.server import Limits, Server
from prefork_q.events import Events, Sink
from tests.support.api import statuses_in
from tests.support.until import until

LARGE = 8 << 20
"""Bytes of the large answer: more than the kernel takes for a client that reads nothing."""
GET_LARGE = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"


class Site:
    """A server in a thread of the test, and what was asked of it."""

    def __init__(self, events: Events, limits: Limits) -> None:
        self.asked = 0
        routes = [
            Route("GET", "/large", self._large, None, needs_redis=False),
            Route("GET", ALIVE, self._small, None, needs_redis=False),
            Route("GET", "/small", self._small, None, needs_redis=False),
            Route("POST", "/small", self._small, None, needs_redis=False),
        ]
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        application = Application(routes, events, Breaker(), Access(None, events))
        self._server = Server(application, [self._socket], limits, on_turn=self._turn)
        self._is_over = False
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def get(self, path: str) -> int:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)) as connection:
            connection.request("GET", path)
            return connection.getresponse().status

    def connections(self) -> int:
        """Return how many connections the server has open."""
        return sum(1 for _ in self._server._connections())

    def close(self) -> None:
        self.get("/small")
        until(lambda: self.connections() == 0, 10, "the end of all connections")
        self._is_over = True
        self._thread.join(10)
        assert not self._thread.is_alive()
        # What an api process leaves to its end.
        for dispatcher in (self._server._threads, self._server._probes):
            dispatcher.shutdown()
        for listener in self._server._listeners:
            listener.close()

    def _turn(self) -> None:
        if self._is_over and not self._server.is_draining:
            self._server.drain(0.0)

    def _large(self, environ: Environ) -> Answer:
        self.asked += 1
        return Answer(200, b"x" * LARGE, "text/plain")

    def _small(self, environ: Environ) -> Answer:
        read_body(environ, LARGE)
        return Answer(200, b"x", "text/plain")


@pytest.fixture
def new_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    sink = Sink.file(tmp_path / "log", patience=0.0)
    events = Events(sink, format="json", level="debug", process={})
    sites: list[Site] = []

    def new(**limits: float) -> Site:
        sites.append(Site(events, Limits(**{"body": LARGE, "threads": 2} | limits)))  # type: ignore[arg-type]
        return sites[-1]

    yield new
    for site in sites:
        site.close()
    sink.close()


def read_all(connection: socket.socket) -> bytes:
    answer = b""
    while data := connection.recv(1 << 20):
        answer += data
    return answer


def test_clients_that_read_nothing_hold_no_thread_and_are_left(new_site: Callable[..., Site]) -> None:
    site = new_site(unread_time=1.0)
    deaf = [site.connect() for _ in range(10)]
    for connection in deaf:
        connection.sendall(GET_LARGE * 3)
    until(lambda: site.asked == len(deaf), 10, "the first request of each")

    assert site.get("/small") == 200
    assert site.get(ALIVE) == 200
    until(lambda: site.connections() == 0, 10, "the end of those that do not read")
    assert site.asked == len(deaf)
    for connection in deaf:
        connection.close()


def test_a_client_that_reads_late_gets_all_its_answers(new_site: Callable[..., Site]) -> None:
    site = new_site()
    with site.connect() as late:
        late.sendall(GET_LARGE * 3 + b"GET /small HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        until(lambda: site.asked == 1, 10)
        assert site.get("/small") == 200
        assert site.asked == 1
        answer = read_all(late)

    assert statuses_in(answer) == [200] * 4
    assert len(answer) > 3 * LARGE


def test_a_probe_behind_other_answers_holds_up_no_other_probe(new_site: Callable[..., Site]) -> None:
    site = new_site()
    probe = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % ALIVE.encode()
    with site.connect() as deaf:
        deaf.sendall(probe + GET_LARGE + probe + GET_LARGE + probe)
        until(lambda: site.asked == 1, 10)
        assert site.get(ALIVE) == 200


def test_who_connects_and_says_nothing_is_left_sooner_than_who_has_said_something(
    new_site: Callable[..., Site],
) -> None:
    site = new_site(silent_time=1.0)
    with site.connect() as silent, site.connect() as idle:
        idle.sendall(b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(65_536).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        assert silent.recv(1) == b""
        assert time.monotonic() - began < 5
        idle.sendall(b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(65_536).startswith(b"HTTP/1.1 200")


def test_an_upload_that_is_given_up_leaves_no_file_behind(new_site: Callable[..., Site]) -> None:
    site = new_site()
    process = psutil.Process()
    before = process.num_fds()
    for _ in range(20):
        with site.connect() as connection:
            connection.sendall(b"POST /small HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n")
            connection.sendall(b"x" * 1_000_000)
    # Whoever came before has been let in by then.
    assert site.get("/small") == 200

    until(lambda: process.num_fds() <= before, 10, "the end of connections and files")
