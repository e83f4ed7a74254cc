"""What comes over the wire: requests that are no good HTTP, slow clients, large bodies, odd bytes."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from prefork_q.connection import connect
from prefork_q.inspector import Inspector
from prefork_q.keys import Keys
from tests.support.api import Api, statuses_in
from tests.support.server import Server
from tests.support.until import until

pytestmark = pytest.mark.either_server

PAYLOAD_LIMIT = 262_144
BODY = b'{"type":"plain","payload":{"value":7}}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
POST = b"POST /tasks HTTP/1.1\r\nHost: x\r\n"
CLOSE = b"Connection: close\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
SMUGGLED = b"POST /tasks HTTP/1.1\r\nHost: x\r\n" + LENGTH + b"\r\n" + BODY
CHUNKED = b"Transfer-Encoding: chunked\r\n"
BYTES = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"
WHOLE_CHUNK = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


@pytest.fixture
def api(server: Server, keys: Keys, tmp_path: Path) -> Iterator[Api]:
    api = Api(server.url, tmp_path / "api", namespace=keys.namespace)
    yield api.start()
    api.close()


@pytest.fixture
def inspector(server: Server, keys: Keys) -> Inspector:
    return Inspector(connect(server.url), keys)


MALFORMED = {
    "both length headers": (400, POST + LENGTH + CHUNKED + b"\r\n" + WHOLE_CHUNK),
    "both length headers, the other way round": (400, POST + CHUNKED + LENGTH + b"\r\n" + WHOLE_CHUNK),
    "length 0 and chunked": (400, POST + b"Content-Length: 0\r\n" + CHUNKED + b"\r\n" + WHOLE_CHUNK),
    "two lengths that differ": (400, POST + LENGTH + b"Content-Length: 5\r\n\r\n" + BODY),
    "two lengths that agree": (400, POST + LENGTH + LENGTH + b"\r\n" + BODY),
    "two lengths in one field": (400, POST + b"Content-Length: 38, 38\r\n\r\n" + BODY),
    "a length with a sign": (400, POST + b"Content-Length: +38\r\n\r\n" + BODY),
    "a negative length": (400, POST + b"Content-Length: -1\r\n\r\n" + BODY),
    "a hexadecimal length": (400, POST + b"Content-Length: 0x26\r\n\r\n" + BODY),
    "a length with a fraction": (400, POST + b"Content-Length: 38.0\r\n\r\n" + BODY),
    "a length with an underscore": (400, POST + b"Content-Length: 3_8\r\n\r\n" + BODY),
    "a length with a space": (400, POST + b"Content-Length: 3 8\r\n\r\n" + BODY),
    "a length that is empty": (400, POST + b"Content-Length:\r\n\r\n" + BODY),
    "a length in other digits": (400, POST + "Content-Length: ３８\r\n\r\n".encode() + BODY),
    "a length of five thousand digits": (413, POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n" + BODY),
    "a length of twenty digits": (413, POST + b"Content-Length: " + b"9" * 20 + b"\r\n\r\n" + BODY),
    "a space before the colon": (400, POST + b"Content-Length : 38\r\n\r\n" + BODY),
    "a coding that is not known": (501, POST + b"Transfer-Encoding: gzip\r\n\r\n" + SMUGGLED),
    "a coding before chunked": (501, POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + WHOLE_CHUNK),
    "a coding after chunked": (501, POST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + WHOLE_CHUNK),
    "chunked twice in one field": (400, POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + WHOLE_CHUNK),
    "chunked twice": (400, POST + CHUNKED + CHUNKED + b"\r\n" + WHOLE_CHUNK),
    "chunked with a comma": (400, POST + b"Transfer-Encoding: ,chunked\r\n\r\n" + WHOLE_CHUNK),
    "chunked in quotes": (501, POST + b'Transfer-Encoding: "chunked"\r\n\r\n' + WHOLE_CHUNK),
    "almost chunked": (501, POST + b"Transfer-Encoding: xchunked\r\n\r\n" + WHOLE_CHUNK),
    "chunked with a vertical tab": (400, POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + WHOLE_CHUNK),
    "an empty coding": (400, POST + b"Transfer-Encoding:\r\n" + LENGTH + b"\r\n" + BODY),
    "chunked on a line of its own": (400, POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + WHOLE_CHUNK),
    "chunked in HTTP/1.0": (400, b"POST /tasks HTTP/1.0\r\n" + CHUNKED + b"\r\n" + WHOLE_CHUNK),
    "a size that is no number": (400, POST + CHUNKED + b"\r\nxyz\r\n" + BODY),
    "a size with a sign": (400, POST + CHUNKED + b"\r\n+26\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a size with 0x": (400, POST + CHUNKED + b"\r\n0x26\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "an empty size": (400, POST + CHUNKED + b"\r\n\r\n" + WHOLE_CHUNK),
    "a size that overflows": (400, POST + CHUNKED + b"\r\n" + b"f" * 17 + b"\r\n" + BODY),
    "a size ended by a bare line feed": (400, POST + CHUNKED + b"\r\n26\n" + BODY + b"\r\n0\r\n\r\n"),
    "a size with a bare line feed in it": (400, POST + CHUNKED + b"\r\n26\n\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "an extension with a line feed": (400, POST + CHUNKED + b"\r\n26;a\nb\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "an extension without end": (400, POST + CHUNKED + b"\r\n26;" + b"a" * 5000 + b"\r\n" + BODY),
    "a chunk that is longer than it says": (400, POST + CHUNKED + b"\r\n5\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk that a bare line feed ends": (400, POST + CHUNKED + b"\r\n26\r\n" + BODY + b"\n0\r\n\r\n"),
    "a trailer that is no field": (400, POST + CHUNKED + b"\r\n26\r\n" + BODY + b"\r\n0\r\nnonsense\r\n\r\n"),
    "trailers without end": (400, POST + CHUNKED + b"\r\n26\r\n" + BODY + b"\r\n0\r\n" + b"a: b\r\n" * 5000),
    "no Host": (400, b"POST /tasks HTTP/1.1\r\n" + LENGTH + b"\r\n" + BODY),
    "two Hosts": (400, POST + b"Host: y\r\n" + LENGTH + b"\r\n" + BODY),
    "a Host with a path": (400, b"POST /tasks HTTP/1.1\r\nHost: x/y\r\n" + LENGTH + b"\r\n" + BODY),
    "a Host with two names": (400, b"POST /tasks HTTP/1.1\r\nHost: x, y\r\n" + LENGTH + b"\r\n" + BODY),
    "HTTP/0.9": (400, b"GET /healthz\r\n\r\n"),
    "HTTP/2.0": (505, b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n"),
    "the preface of HTTP/2": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/1.2": (505, b"POST /tasks HTTP/1.2\r\nHost: x\r\n" + CHUNKED + b"\r\n" + WHOLE_CHUNK),
    "a version of two digits": (400, b"GET /healthz HTTP/1.10\r\nHost: x\r\n\r\n"),
    "another protocol": (400, b"GET /healthz SIP/1.1\r\nHost: x\r\n\r\n"),
    "a method in lower case": (400, b"post /tasks HTTP/1.1\r\nHost: x\r\n" + LENGTH + b"\r\n" + BODY),
    "a method with a space": (400, b"PO ST /tasks HTTP/1.1\r\nHost: x\r\n\r\n"),
    "two spaces in the first line": (400, b"GET  /healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a tab in the first line": (400, b"GET\t/healthz\tHTTP/1.1\r\nHost: x\r\n\r\n"),
    "a space before the method": (400, b" GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a space after the version": (400, b"GET /healthz HTTP/1.1 \r\nHost: x\r\n\r\n"),
    "no target": (400, b"GET HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a target with a control character": (400, b"GET /heal\x01thz HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a target with a raw byte": (400, b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a vertical tab before the method": (400, b"\x0bGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
    "spaces after an empty line": (400, b"\r\n  GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a bare line feed before the method": (400, b"\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a bare carriage return before it": (400, b"\r\n\rGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a target without a slash": (400, b"GET healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a target of another scheme": (400, b"GET ftp://x/healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
    "an absolute target without a host": (400, b"GET http:///healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
    "an absolute target with a user": (400, b"GET http://me@x/healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
    "the target of CONNECT": (400, b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a star where none belongs": (400, b"GET * HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a long target in a long header": (414, b"GET /" + b"a" * 33_000 + b" HTTP/1.1\r\n" + b"A: b\r\n" * 9),
    "a target that is no URL": (400, b"GET http://[::1/healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a path that is not UTF-8": (400, b"GET /tasks/%ff HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n"),
    "a bare carriage return in a field": (400, GET + b"A: b\rc\r\n\r\n"),
    "a bare line feed in a field": (400, GET + b"A: b\nContent-Length: 38\r\n\r\n"),
    "a zero byte in a field": (400, GET + b"A: b\x00c\r\n\r\n"),
    "a field without a name": (400, GET + b": b\r\n\r\n"),
    "a field without a colon": (400, GET + b"nonsense\r\n\r\n"),
    "a field name with a space": (400, GET + b"A B: c\r\n\r\n"),
    "a folded field": (400, GET + b"A: b\r\n c\r\n\r\n"),
    "a first field that is folded": (400, b"GET /healthz HTTP/1.1\r\n Host: x\r\n\r\n"),
    "a hundred and one fields": (431, GET + b"A: b\r\n" * 100 + b"\r\n"),
    "a field that is too long": (431, GET + b"A: " + b"b" * 40_000 + b"\r\n\r\n"),
    "a target that is too long": (414, b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"),
    "an expectation that is not known": (417, POST + LENGTH + b"Expect: magic\r\n\r\n" + BODY),
    "a wrong length with an expectation": (400, POST + b"Content-Length: x\r\nExpect: 100-continue\r\n\r\n"),
    "too much with an expectation": (413, POST + b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n"),
    "noise": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
}  # fmt: skip


def test_a_malformed_request_gets_one_refusal_and_the_connection_closes(
    api: Api, inspector: Inspector
) -> None:
    for name, (status, request) in MALFORMED.items():
        answer = api.raw_answer(request + SMUGGLED)
        assert statuses_in(answer) == [status], (name, answer)
        problem = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert problem["status"] == status, name
        assert problem["detail"], name
        assert b"application/problem+json" in answer, name

    assert inspector.counts().totals.get("submitted", 0) == 0
    assert api.http("GET", "/healthz").status == 200


WELL_FORMED = {
    "as usual": POST + LENGTH + CLOSE + b"\r\n" + BODY,
    "chunked": POST + CHUNKED + CLOSE + b"\r\n" + WHOLE_CHUNK,
    "chunked in capitals": POST + b"TRANSFER-ENCODING: CHUNKED\r\n" + CLOSE + b"\r\n" + WHOLE_CHUNK,
    "many chunks": POST + CHUNKED + CLOSE + b"\r\n" + BYTES,
    "a chunk with an extension": POST + CHUNKED + CLOSE + b'\r\n26;a="b";c\r\n' + BODY + b"\r\n0\r\n\r\n",
    "a chunk with leading zeros": POST + CHUNKED + CLOSE + b"\r\n00026\r\n" + BODY + b"\r\n0\r\n\r\n",
    "chunks with a trailer": POST + CHUNKED + CLOSE + b"\r\n26\r\n" + BODY + b"\r\n0\r\nA: b\r\n\r\n",
    "HTTP/1.0": b"POST /tasks HTTP/1.0\r\n" + LENGTH + b"\r\n" + BODY,
    "empty lines before": b"\r\n\r\n" + POST + LENGTH + CLOSE + b"\r\n" + BODY,
    "an absolute target": b"POST http://x/tasks HTTP/1.1\r\nHost: x\r\n" + LENGTH + CLOSE + b"\r\n" + BODY,
    "one in capitals": b"POST HTTP://x/tasks HTTP/1.1\r\nHost: \r\n" + LENGTH + CLOSE + b"\r\n" + BODY,
    "close among other options": POST + LENGTH + b"Connection: TE, close\r\n\r\n" + BODY,
    "fields with underscores": POST + LENGTH + b"Content_Length: 1\r\n" + CLOSE + b"\r\n" + BODY,
    "spaces around values": POST + b"Content-Length: \t 38 \t\r\n" + CLOSE + b"\r\n" + BODY,
}  # fmt: skip


def test_a_well_formed_request_is_taken_in_one_piece_or_in_two(api: Api, inspector: Inspector) -> None:
    for name, request in WELL_FORMED.items():
        assert api.raw(request) == [202], name
        middle = len(request) // 2
        assert api.raw(request[:middle], request[middle:]) == [202], name

    assert inspector.counts().totals["submitted"] == 2 * len(WELL_FORMED)


def test_a_request_that_comes_byte_by_byte_is_taken(api: Api) -> None:
    request = POST + CHUNKED + CLOSE + b"\r\n" + WHOLE_CHUNK
    with api.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request:
            connection.sendall(bytes([byte]))
        assert connection.recv(65_536).startswith(b"HTTP/1.1 202 ")


def test_requests_on_one_connection_are_answered_in_order(api: Api) -> None:
    requests = GET + b"\r\n" + POST + LENGTH + b"\r\n" + BODY + GET + CLOSE + b"\r\n"

    assert api.raw(requests) == [200, 202, 200]


def test_a_client_that_expects_100_is_told_to_go_on_and_only_then_sends(api: Api) -> None:
    with api.connect() as connection:
        connection.sendall(POST + LENGTH + b"Expect: 100-continue\r\n" + CLOSE + b"\r\n")
        assert connection.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 202 ")


def test_an_expectation_without_a_body_does_not_hang(api: Api) -> None:
    answer = api.raw_answer(GET + b"Expect: 100-continue\r\n" + CLOSE + b"\r\n", timeout=3)
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_a_client_that_half_closes_gets_its_answer(api: Api) -> None:
    with api.connect() as connection:
        connection.sendall(POST + LENGTH + b"\r\n" + BODY)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 202 ")


def test_a_body_that_ends_too_early_creates_no_task(api: Api, inspector: Inspector) -> None:
    with api.connect() as connection:
        connection.sendall(POST + b"Content-Length: 500\r\n\r\n" + BODY)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(65_536) == b""

    assert inspector.counts().totals.get("submitted", 0) == 0


def test_head_has_the_headers_of_get_and_no_body(api: Api) -> None:
    answer = api.raw_answer(b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n")

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"Content-Length: 15" in head
    assert body == b""


def test_the_unix_socket_answers_too(api: Api) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(api.unix_path)
        connection.sendall(POST + LENGTH + CLOSE + b"\r\n" + BODY)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 202 ")


def test_a_payload_up_to_the_limit_is_taken_and_one_byte_more_is_not(api: Api) -> None:
    def submit(size: int) -> int:
        text = "x" * (size - len('{"value":""}'))
        return api.http("POST", "/tasks", {"type": "return", "payload": {"value": text}}).status

    assert [submit(PAYLOAD_LIMIT + n) for n in (-1, 0, 1)] == [202, 202, 413]


def test_the_payload_limit_is_of_its_shortest_form(api: Api) -> None:
    text = "ж" * ((PAYLOAD_LIMIT - 20) // 2)
    body = json.dumps({"type": "return", "payload": {"value": text}}, ensure_ascii=True, indent=4).encode()

    assert len(body) > 2 * PAYLOAD_LIMIT
    assert api.http("POST", "/tasks", body).status == 202


def test_a_huge_body_is_refused_before_it_is_read(api: Api) -> None:
    process = psutil.Process(api.pid)
    api.http("GET", "/healthz")
    before = process.memory_info().rss
    megabyte = b"x" * (1 << 20)

    # Clients that send all before they read: they see the refusal, not a reset connection.
    assert api.raw(POST + b"Content-Length: 104857600\r\n\r\n", *[megabyte] * 100) == [413]
    assert api.raw(POST + CHUNKED + b"\r\n", *[b"100000\r\n" + megabyte + b"\r\n"] * 100) == [413]
    assert api.raw(POST + b"Content-Length: 2000000\r\n" + CLOSE + b"\r\n", megabyte * 2) == [413]
    assert process.memory_info().rss - before < 20 << 20
    assert api.http("GET", "/healthz").status == 200


@pytest.mark.parametrize("depth", [10, 62, 65, 1_000, 20_000, 100_000])
def test_depth_is_bounded_without_recursion(server: Server, api: Api, depth: int) -> None:
    body = b'{"type":"return","payload":{"value":' + b"[" * depth + b"]" * depth + b"}}"
    expected = 202 if depth <= 62 else 400
    assert api.http("POST", "/tasks", body).status == expected


def test_clients_that_are_idle_or_slow_do_not_hold_up_others(api: Api) -> None:
    idle = [api.connect() for _ in range(50)]
    slow = [api.connect() for _ in range(50)]
    for connection in slow:
        connection.sendall(POST + LENGTH)

    times = []
    for n in range(50):
        for connection in slow:
            connection.sendall(b"A"[:1] if n == 0 else b"b")
        began = time.monotonic()
        assert api.http("POST", "/tasks", BODY).status == 202
        times.append(time.monotonic() - began)

    for connection in idle + slow:
        connection.close()
    assert sorted(times)[48] < 1.0
    until(lambda: psutil.Process(api.pid).num_fds() < 60, 5, "the connections' being closed")


def test_many_clients_at_once_are_all_answered(api: Api, inspector: Inspector) -> None:
    with ThreadPoolExecutor(50) as pool:
        statuses = list(pool.map(lambda _: api.http("POST", "/tasks", BODY).status, range(300)))

    assert statuses == [202] * 300
    assert inspector.counts().pending == 300
