"""The api process: birth, drain, signals, and what it says while Redis is away."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from prefork_q.connection import connect
from prefork_q.inspector import Inspector
from prefork_q.keys import Keys
from tests.support.api import Api
from tests.support.http import problem
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.until import until

pytestmark = pytest.mark.either_server

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def new_api(keys: Keys, tmp_path: Path) -> Iterator[Callable[..., Api]]:
    made: list[Api] = []

    def new(url: str, **options: object) -> Api:
        made.append(Api(url, tmp_path / f"api-{len(made)}", **{"namespace": keys.namespace} | options))
        return made[-1]

    yield new
    for api in made:
        api.close()


@pytest.fixture
def api(server: Server, new_api: Callable[..., Api]) -> Api:
    return new_api(server.url).start()


def is_refused(api: Api) -> bool:
    try:
        api.connect().close()
    except ConnectionRefusedError:
        return True
    return False


def test_it_has_its_title_and_no_sockets_but_its_own(api: Api) -> None:
    process = psutil.Process(api.pid)
    api.http("GET", "/tasks")

    assert process.cmdline()[0] == "prefork-q: api"
    listening = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    assert [one.laddr.port for one in listening] == [api.port]


@pytest.mark.parametrize("order", ["drain 5", "hang up", "SIGTERM"])
def test_it_drains_when_told_when_terminated_and_when_its_master_is_gone(api: Api, order: str) -> None:
    with api.connect() as idle:
        idle.sendall(GET)
        assert idle.recv(65_536).startswith(b"HTTP/1.1 200")
        began = time.monotonic()

        if order == "SIGTERM":
            api.send(signal.SIGTERM)
        else:
            api.tell(order)

        assert api.exit_code() == 0
        assert time.monotonic() - began < 2
        assert idle.recv(65_536) == b""
    assert is_refused(api)
    assert api.events("stopped")


def test_requests_in_flight_are_answered_before_it_ends(api: Api) -> None:
    id = api.http("POST", "/tasks", {"type": "plain"}).json["id"]
    with ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(api.http, "GET", f"/tasks/{id}?wait=50", timeout=60) for _ in range(20)]
        time.sleep(0.5)
        began = time.monotonic()
        api.tell("drain 10")
        replies = [one.result(10) for one in waiting]

    assert {(reply.status, reply.json["status"]) for reply in replies} == {(200, "pending")}
    assert {reply.headers.get("connection") for reply in replies} == {"close"}
    assert api.exit_code() == 0
    assert time.monotonic() - began < 3


def test_nothing_that_was_accepted_is_lost_in_a_drain_under_load(
    api: Api, server: Server, keys: Keys
) -> None:
    accepted: list[str] = []
    is_over = threading.Event()

    def submit() -> None:
        while not is_over.is_set():
            try:
                reply = api.http("POST", "/tasks", {"type": "plain"})
            except OSError:
                # Refused or closed: then the client knows nothing, and may ask again.
                continue
            assert reply.status == 202
            accepted.append(reply.json["id"])

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: len(accepted) > 50, 10)
    api.tell("drain 10")
    assert api.exit_code() == 0
    is_over.set()
    for thread in threads:
        thread.join()

    inspector = Inspector(connect(server.url), keys)
    assert all(inspector.get(id) is not None for id in accepted)


def test_a_connection_that_is_open_may_be_used_once_more_while_there_is_patience(api: Api) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=10)
    connection.request("GET", "/healthz")
    assert connection.getresponse().read()

    api.tell("drain 10 5")
    until(lambda: is_refused(api), 5, "the end of accepting")
    connection.request("GET", "/healthz")
    answer = connection.getresponse()

    assert (answer.status, answer.headers["Connection"]) == (200, "close")
    answer.read()
    connection.close()
    assert api.exit_code(10) == 0


def test_patience_has_an_end(api: Api) -> None:
    with api.connect() as idle:
        idle.sendall(GET)
        assert idle.recv(65_536).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        api.tell("drain 10 0.5")
        assert idle.recv(1) == b""
        assert 0.4 < time.monotonic() - began < 5
    assert api.exit_code(5) == 0


def test_a_client_that_has_just_been_let_in_is_answered_in_a_drain(api: Api) -> None:
    with api.connect() as fresh:
        # Behind it in the queue: when this one is answered, the other has been accepted.
        assert api.http("GET", "/healthz").status == 200
        api.tell("drain 10")
        until(lambda: is_refused(api), 5, "the end of accepting")
        fresh.sendall(GET)
        assert fresh.recv(65_536).startswith(b"HTTP/1.1 200")
    assert api.exit_code() == 0


def test_a_client_that_says_nothing_does_not_hold_up_a_drain(api: Api) -> None:
    with api.connect() as silent:
        began = time.monotonic()
        api.tell("drain 30")
        assert api.exit_code() == 0
        assert time.monotonic() - began < 4
        assert silent.recv(1) == b""


def test_a_request_that_never_arrives_whole_does_not_hold_up_a_drain(api: Api) -> None:
    with api.connect() as connection:
        connection.sendall(b"POST /tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        time.sleep(0.2)
        began = time.monotonic()
        api.tell("drain 30")
        assert api.exit_code() == 0

    assert time.monotonic() - began < 6
    assert api.events("stopped")[0]["requests_cut"] == 1


def trickle(connection: socket.socket, size: int) -> None:
    """Send a whole request, a tenth of a second from byte to byte of its body."""
    connection.sendall(b"POST /tasks HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
    for byte in b'{"type":"plain"}'.ljust(size):
        time.sleep(0.1)
        connection.sendall(bytes([byte]))


def test_a_request_that_goes_on_arriving_is_answered_in_a_drain(api: Api) -> None:
    with api.connect() as connection, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(trickle, connection, 35)
        until(lambda: api.http("GET", "/healthz").status == 200, 5)
        api.tell("drain 30")
        sending.result(20)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 202")
        assert api.exit_code() == 0
    assert "requests_cut" not in api.events("stopped")[0]


def test_a_request_that_is_still_arriving_at_the_end_of_a_drain_is_counted(api: Api) -> None:
    with api.connect() as connection, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(trickle, connection, 1_000)
        until(lambda: api.http("GET", "/healthz").status == 200, 5)
        began = time.monotonic()
        api.tell("drain 1.5")
        assert api.exit_code() == 0
        assert time.monotonic() - began < 4
        assert isinstance(sending.exception(20), OSError)
    assert api.events("stopped")[0]["requests_cut"] == 1


def test_a_drain_is_bounded_whatever_redis_does(own_server: Server, new_api: Callable[..., Api]) -> None:
    api = new_api(own_server.url).start()
    api.http("POST", "/tasks", {"type": "plain"})
    own_server.pause()
    try:
        with ThreadPoolExecutor(4) as pool:
            stuck = [pool.submit(api.raw, b"GET /tasks HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(4)]
            time.sleep(0.3)
            began = time.monotonic()
            api.tell("drain 1")
            assert api.exit_code() == 0
            assert time.monotonic() - began < 2
            assert [one.result(10) for one in stuck] == [[]] * 4
    finally:
        own_server.resume()
    assert api.events("stopped")[0]["requests_cut"] == 4


def test_signals_of_the_terminal_and_the_group_do_nothing(api: Api) -> None:
    for name in ("INT", "QUIT", "HUP", "TSTP", "CONT", "TTIN", "TTOU", "USR1", "USR2", "WINCH"):
        api.send(signal.Signals[f"SIG{name}"])
    time.sleep(0.2)

    assert psutil.Process(api.pid).status() != psutil.STATUS_STOPPED
    assert api.http("GET", "/healthz").status == 200


def test_a_file_of_tokens_that_cannot_be_read_is_told_to_the_master(
    server: Server, new_api: Callable[..., Api], tmp_path: Path
) -> None:
    api = new_api(server.url, token_file=[str(tmp_path / "nowhere")])

    word = api.begin()

    assert "nowhere" in word["failed"]
    assert api.exit_code() == 78


def test_it_begins_while_redis_is_away_and_goes_on_when_it_is_back(
    own_server: Server, new_api: Callable[..., Api]
) -> None:
    own_server.kill()
    api = new_api(own_server.url).start()
    id = "01a227f4-944d-7407-9c4f-0afb90b9c9e5"
    requests = [
        ("POST", "/tasks", {"type": "plain"}),
        ("POST", "/tasks/batch", {"tasks": [{"type": "plain"}]}),
        ("GET", f"/tasks/{id}", None),
        ("GET", f"/tasks/{id}?wait=5", None),
        ("GET", "/tasks", None),
        ("POST", f"/tasks/{id}/cancel", None),
        ("GET", "/dead", None),
        ("POST", f"/dead/{id}/retry", None),
        ("POST", "/dead/retry", None),
        ("DELETE", f"/dead/{id}", None),
        ("GET", "/queues", None),
        ("POST", "/queues/default/pause", None),
        ("GET", "/readyz", None),
        ("GET", "/metrics", None),
    ]
    address = own_server.url.removeprefix("redis://")
    for method, path, body in requests:
        reply = api.http(method, path, body)
        assert reply.status == 503, path
        assert int(reply.headers["retry-after"]) >= 1, path
        # Where Redis is, and what the system says of it, is for the log alone.
        assert problem(reply)["detail"] == "Redis cannot be reached", path
    (told,) = api.events("redis_failed")
    assert told["kind"] == "connection"
    assert address.partition("/")[0] in told["error"]
    assert api.http("GET", "/healthz").status == 200
    assert api.http("POST", "/tasks", {"type": "nobody"}).status == 422

    own_server.start()
    for method, path, body in requests[:1] + requests[4:5] + requests[6:7] + requests[10:11]:
        assert api.http(method, path, body).status in (200, 202), path


def test_after_a_restart_of_redis_no_request_meets_a_stale_connection(
    own_server: Server, new_api: Callable[..., Api]
) -> None:
    api = new_api(own_server.url).start()
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda _: api.http("POST", "/tasks", {"type": "plain"}), range(100)))
        own_server.restart()
        replies = list(pool.map(lambda _: api.http("POST", "/tasks", {"type": "plain"}), range(100)))

    assert {reply.status for reply in replies} == {202}


def test_a_redis_that_hangs_holds_up_neither_the_probe_nor_later_refusals(
    own_server: Server, new_api: Callable[..., Api]
) -> None:
    api = new_api(own_server.url).start()
    api.http("GET", "/tasks")
    own_server.pause()
    try:
        with ThreadPoolExecutor(64) as pool:
            stuck = [pool.submit(api.http, "GET", "/tasks", timeout=30) for _ in range(64)]
            time.sleep(0.3)
            began = time.monotonic()
            assert api.http("GET", "/healthz").status == 200
            assert time.monotonic() - began < 1
            assert {one.result().status for one in stuck} == {503}
        times = []
        for _ in range(10):
            began = time.monotonic()
            assert api.http("POST", "/tasks", {"type": "plain"}).status == 503
            times.append(time.monotonic() - began)
        assert sorted(times)[5] < 0.5
    finally:
        own_server.resume()
    until(lambda: api.http("POST", "/tasks", {"type": "plain"}).status == 202, 5)


def test_a_wait_outlives_a_restart_of_redis(own_server: Server, new_api: Callable[..., Api]) -> None:
    api = new_api(own_server.url).start()
    id = api.http("POST", "/tasks", {"type": "plain"}).json["id"]
    client = own_server.client()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.http, "GET", f"/tasks/{id}?wait=40", timeout=50)
        until(lambda: client.pubsub_channels(), 10)
        own_server.restart()
        again = own_server.client()
        until(lambda: again.pubsub_channels(), 10)
        began = time.monotonic()
        assert api.http("POST", f"/tasks/{id}/cancel").status == 200
        assert waiting.result(10).json["status"] == "cancelled"

    assert time.monotonic() - began < 3


def test_a_redis_that_is_full_refuses_submissions_and_serves_the_rest(
    new_server: Callable[..., Server], new_api: Callable[..., Api]
) -> None:
    server = new_server(is_persistent=False)
    api = new_api(server.url).start()
    id = api.http("POST", "/tasks", {"type": "plain"}).json["id"]
    server.client().config_set("maxmemory", 1)

    reply = api.http("POST", "/tasks", {"type": "plain"})

    assert reply.status == 503
    assert "full" in problem(reply)["detail"]
    assert int(reply.headers["retry-after"]) >= 1
    assert api.http("GET", f"/tasks/{id}").json["status"] == "pending"
    assert api.http("POST", f"/tasks/{id}/cancel").status == 200


def test_forgotten_scripts_are_loaded_again(own_server: Server, new_api: Callable[..., Api]) -> None:
    api = new_api(own_server.url).start()
    for _ in range(2):
        assert api.http("POST", "/tasks", {"type": "plain"}).status == 202
        assert api.http("GET", "/metrics").status == 200
        own_server.client().script_flush()


def test_a_mistake_of_ours_is_a_500_and_a_line_in_the_log(
    own_server: Server, new_api: Callable[..., Api], keys: Keys
) -> None:
    api = new_api(own_server.url).start()
    # A number that nobody can read: it is in no way the client's fault.
    own_server.client().hset(keys("totals"), "submitted", "many")

    reply = api.http("GET", "/metrics", headers={"Accept": "application/json"})

    assert reply.status == 500
    assert "many" not in problem(reply)["detail"]
    (event,) = api.events("request_failed")
    assert (event["method"], event["path"], event["level"]) == ("GET", "/metrics", "error")
    assert "ValueError" in event["traceback"]
    assert api.http("GET", "/healthz").status == 200


def test_it_serves_with_few_descriptors(server: Server, new_api: Callable[..., Api]) -> None:
    api = new_api(server.url).start()
    _, hard = psutil.Process(api.pid).rlimit(psutil.RLIMIT_NOFILE)
    assert hard > 64
    connections: list[socket.socket] = []
    try:
        for _ in range(1_050):
            connections.append(api.connect())
        began = time.monotonic()
        for connection in connections:
            connection.close()
        assert api.http("GET", "/healthz").status == 200
        assert time.monotonic() - began < 10
    finally:
        for connection in connections:
            connection.close()
    assert os.path.exists(f"/proc/{api.pid}")


def test_it_raises_its_limit_of_descriptors_to_what_connections_need(api: Api) -> None:
    soft, hard = psutil.Process(api.pid).rlimit(psutil.RLIMIT_NOFILE)

    assert soft >= min(hard, 2_100)


def test_without_a_descriptor_left_requests_are_refused_for_now(api: Api) -> None:
    process = psutil.Process(api.pid)
    _, hard = process.rlimit(psutil.RLIMIT_NOFILE)
    assert api.http("GET", "/metrics").status == 200
    # The two ask the node's master.
    paths = (b"/node", b"/readyz")
    with ExitStack() as stack:
        connections = [stack.enter_context(api.connect()) for _ in paths]
        for connection in connections:
            connection.sendall(GET)
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        used = {int(name) for name in os.listdir(f"/proc/{api.pid}/fd")}
        process.rlimit(psutil.RLIMIT_NOFILE, (min({*range(len(used) + 1)} - used), hard))
        for path, connection in zip(paths, connections, strict=True):
            connection.sendall(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path)
            assert connection.recv(65_536).startswith(b"HTTP/1.1 503"), (path, api.log())
    assert api.events("request_failed") == [], api.log()


def test_connections_that_a_firewall_has_dropped_cost_no_request(
    server: Server, new_api: Callable[..., Api]
) -> None:
    with Proxy(server.url) as proxy:
        api = new_api(proxy.url).start()
        id = api.http("POST", "/tasks", {"type": "plain"}).json["id"]
        for method, path, status in (
            ("GET", f"/tasks/{id}", 200),
            ("GET", "/metrics", 200),
            ("POST", "/queues/default/pause", 200),
            ("POST", "/queues/default/resume", 200),
            ("POST", f"/tasks/{id}/cancel", 200),
            ("POST", "/dead/retry", 202),
            ("GET", "/readyz", 503),  # no worker is ready
        ):
            connections = proxy.accepted
            proxy.forget()
            reply = api.http(method, path, headers={"Accept": "application/json"})
            assert reply.status == status, (path, reply)
            assert proxy.accepted > connections
        assert "no worker" in reply.json["detail"]
