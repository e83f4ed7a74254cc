"""Which WSGI server for the API: POST /tasks through one api process on one core, Redis included.

    .venv/bin/pip install cheroot gunicorn granian
    .venv/bin/python -m tests.bench.servers [--seconds 3] [--rounds 3] [--clients 32] [--only NAME,...]

Every round starts each server in turn, so that what else the machine does hits all alike. The api has the
first core, the load and Redis the rest. Printed are the medians of the rounds with the lowest and highest:
requests a second, µs of processor time that the api process spent on one, and the slowest 1 % in ms.

`wrapped` is the server of the product; `alone` is it without the sharing of script calls (api/gathering.py),
which all others have; `waitress` is the library alone, without our framing checks and time limits. `healthz`
measures a request that does nothing, which is what the server itself costs.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psutil

from prefork_q.api import create_app
from prefork_q.api.create import body_limit
from prefork_q.api.server import Limits, Server
from prefork_q.config import Config, load
from prefork_q.connection import connect
from prefork_q.task import Submission, Submitted
from tests.bench.scripts import running_server
from tests.integration.test_api_wire import MALFORMED, SMUGGLED
from tests.support.api import statuses_in
from tests.support.node import HANDLERS
from tests.support.server import dies_with_its_parent, free_port
from tests.support.until import until

THREADS = 32
BODY = json.dumps({"type": "return", "payload": {"value": "x" * 80}}, separators=(",", ":")).encode()
SUBMIT = b"POST /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
SUBMIT += b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
PROBE = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
WARM_UP = 0.5
"""Seconds that are not counted."""


class Measure(NamedTuple):
    """Requests a second, µs of the api's processor time a request, and the slowest 1 % in ms."""

    rate: float
    cpu: float
    slow: float


# -- the servers; each runs in a process of its own until it is terminated


def config_of(environ: Any = os.environ) -> Config:
    return load({"redis_url": environ["BENCH_URL"], "target": HANDLERS, "log_level": "warning"}, {})


def application() -> Any:
    """Called by granian, which imports what it serves."""
    return create_app(config_of())


def serve_wrapped(port: int) -> None:
    config = config_of()
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    listener.setblocking(False)
    server = Server(application(), [listener], Limits(body=body_limit(config.payload_limit)))
    server.run()


def serve_alone(port: int) -> None:
    from prefork_q.api.gathering import Gathering

    def submit(self: Gathering, submission: Submission) -> Submitted:
        return self._submit([submission])[0]

    Gathering.submit = submit  # type: ignore[method-assign]
    serve_wrapped(port)


def serve_waitress(port: int) -> None:
    import waitress

    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    waitress.serve(application(), host="127.0.0.1", port=port, threads=THREADS, _quiet=True)


def serve_cheroot(port: int) -> None:
    from cheroot.wsgi import Server as Cheroot

    Cheroot(("127.0.0.1", port), application(), numthreads=THREADS, request_queue_size=1024).start()


def serve_gunicorn(port: int) -> None:
    from gunicorn.app.base import BaseApplication

    class Gunicorn(BaseApplication):  # type: ignore[misc]
        def load_config(self) -> None:
            options = {"bind": f"127.0.0.1:{port}", "workers": 1, "worker_class": "gthread",
                       "threads": THREADS, "keepalive": 60, "loglevel": "error", "backlog": 1024}  # fmt: skip
            for name, value in options.items():
                self.cfg.set(name, value)

        def load(self) -> Any:
            return application()

    Gunicorn().run()


def serve_granian(port: int) -> None:
    from granian import Granian

    Granian(
        "tests.bench.servers:application", address="127.0.0.1", port=port, interface="wsgi", workers=1,
        factory=True, blocking_threads=THREADS, backlog=1024, log_enabled=False,
    ).serve()  # fmt: skip


SERVERS: dict[str, Callable[[int], None]] = {
    "wrapped": serve_wrapped,
    "alone": serve_alone,
    "waitress": serve_waitress,
    "cheroot": serve_cheroot,
    "gunicorn": serve_gunicorn,
    "granian": serve_granian,
}


@contextmanager
def running(name: str, url: str, core: int) -> Iterator[tuple[int, psutil.Process]]:
    """Run a server on one core; yield its port and its process."""
    port = free_port()
    program = subprocess.Popen(
        [
            *dies_with_its_parent("KILL"), sys.executable, "-m", "tests.bench.servers",
            "--serve", name, str(port),
        ],
        env=os.environ | {"BENCH_URL": url},
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )  # fmt: skip
    try:
        until(lambda: answers(port), 20, f"an answer of {name}")
        yield port, psutil.Process(program.pid)
    finally:
        for process in [*psutil.Process(program.pid).children(recursive=True), psutil.Process(program.pid)]:
            process.send_signal(signal.SIGKILL)
        program.wait(10)


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(PROBE)
            return connection.recv(4096).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


# -- the load


def measure(
    port: int, process: psutil.Process, request: bytes, status: bytes, clients: int, seconds: float
) -> Measure:
    """Let so many clients send the request again and again, each as soon as it was answered."""
    poller, connections, begun = select.epoll(), {}, {}

    def begin() -> None:
        one = socket.create_connection(("127.0.0.1", port))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections[one.fileno()] = one
        poller.register(one, select.EPOLLIN)
        begun[one.fileno()] = time.monotonic()
        one.sendall(request)

    for _ in range(clients):
        begin()
    counted, times, started, spent = 0, [], 0.0, 0.0
    end = time.monotonic() + WARM_UP + seconds
    while (now := time.monotonic()) < end:
        if not started and now > end - seconds:
            started, spent, counted, times = now, cpu(process), 0, []
        for fd, _ in poller.poll(1):
            one = connections[fd]
            try:
                answer = one.recv(65_536)
            except ConnectionResetError:
                answer = b""
            if not answer:
                # Some servers close what others keep; the client comes again.
                poller.unregister(fd)
                connections.pop(fd).close()
                begin()
                continue
            while not is_whole(answer):
                more = one.recv(65_536)
                assert more, answer
                answer += more
            assert answer.startswith(status, 9), answer
            at = time.monotonic()
            times.append(at - begun[fd])
            begun[fd] = at
            counted += 1
            one.sendall(request)
    took, spent = time.monotonic() - started, cpu(process) - spent
    for one in connections.values():
        one.close()
    times.sort()
    return Measure(counted / took, spent / counted * 1e6, times[int(len(times) * 0.99)] * 1e3)


def is_whole(answer: bytes) -> bool:
    head, separator, body = answer.partition(b"\r\n\r\n")
    at = head.lower().find(b"content-length:")
    return bool(separator) and len(body) >= int(head[at + 15 :].split(b"\r\n", 1)[0])


def cpu(process: psutil.Process) -> float:
    """Processor time of a server and of the processes that it has made."""
    family = [process, *process.children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in family)


# -- what the API needs of a server, beside speed


def refused(port: int) -> tuple[int, int]:
    """Return how many of the malformed requests get one refusal and a closed connection, and of how many."""
    good = 0
    for _, request in MALFORMED.values():
        statuses, is_closed = exchange(port, request + SMUGGLED)
        good += len(statuses) == 1 and 400 <= statuses[0] < 600 and is_closed
    return good, len(MALFORMED)


def exchange(port: int, request: bytes) -> tuple[list[int], bool]:
    """Send bytes; return the statuses of the answers, and whether the connection was closed then."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=1.5) as connection:
        try:
            connection.sendall(request)
            while data := connection.recv(65_536):
                answer += data
        except TimeoutError:
            return statuses_in(answer), False
        except OSError:
            pass
    return statuses_in(answer), True


def beside_slow_clients(port: int) -> float:
    """Return the seconds until a probe is answered while 40 others have sent half a request; 10 at most."""
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
    try:
        for one in slow:
            one.sendall(SUBMIT[:-10])
        time.sleep(0.5)
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(SUBMIT)
            try:
                connection.recv(4096)
            except TimeoutError:
                return 10.0
        return time.monotonic() - began
    finally:
        for one in slow:
            one.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--binary", default=shutil.which("redis-server"))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--only", default=",".join(SERVERS))
    parser.add_argument("--needs", action="store_true", help="look at framing and slow clients, not at speed")
    options = parser.parse_args()
    if options.serve:
        SERVERS[options.serve[0]](int(options.serve[1]))
        return
    first, *others = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, others or {first})
    names = options.only.split(",")
    if options.needs:
        with running_server(options.binary) as url:
            for name in names:
                with running(name, url, first) as (port, _):
                    good, of = refused(port)
                    seconds = beside_slow_clients(port)
                    print(f"{name:10}{good} of {of} malformed requests refused;", end=" ")
                    print(f"a request beside 40 halves: {seconds:.2f} s")
        return
    found: dict[tuple[str, str], list[Measure]] = {}
    with running_server(options.binary) as url:
        for _ in range(options.rounds):
            for name in names:
                with running(name, url, first) as (port, process):
                    for what, request, status in (("submit", SUBMIT, b"202"), ("healthz", PROBE, b"200")):
                        seconds = options.seconds if what == "submit" else options.seconds / 3
                        got = measure(port, process, request, status, options.clients, seconds)
                        found.setdefault((what, name), []).append(got)
                connect(url).flushall()
    print(f"{'':9}{'':10}{'requests/s':>24}{'µs/request':>22}{'slowest 1 %, ms':>24}")
    for what in ("submit", "healthz"):
        for name in names:
            columns = zip(*found[what, name], strict=True)
            print(f"{what:9}{name:10}" + "".join(f"{spread(column):>23}" for column in columns))


def spread(values: tuple[float, ...]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}–{max(values):,.0f})"


if __name__ == "__main__":
    main()
