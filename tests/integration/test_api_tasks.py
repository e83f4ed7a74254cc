"""`/tasks` over HTTP: submit, show, wait, list, cancel; each answer that is promised."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pytest
import redis

from prefork_q.api.listing import write_cursor
from prefork_q.broker import Broker
from prefork_q.client import Client
from prefork_q.ids import is_id
from prefork_q.inspector import Cursor, Inspector
from prefork_q.keys import Keys
from prefork_q.leases import ClaimRequest, Lease, Limits
from tests.support.api import Api
from tests.support.flavours import Flavour
from tests.support.http import pages, problem
from tests.support.node import Reply
from tests.support.server import Server
from tests.support.until import until

KEYS = Keys("api")
"""All tests share one api process, and with it its namespace; `server` is emptied before each."""
ID = "01a227f4-944d-7407-9c4f-0afb90b9c9e5"
"""No task has it."""


@pytest.fixture(scope="module")
def shared_api(
    flavour: Flavour, shared_servers: Callable[[Flavour], Server], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    api = Api(shared_servers(flavour).url, tmp_path_factory.mktemp("api"), namespace=KEYS.namespace)
    yield api.start()
    api.close()


@pytest.fixture
def api(server: Server, shared_api: Api) -> Api:
    return shared_api


@pytest.fixture
def broker(redis_client: redis.Redis) -> Broker:
    return Broker(redis_client, KEYS, Limits())


@pytest.fixture
def inspector(redis_client: redis.Redis) -> Inspector:
    return Inspector(redis_client, KEYS)


@pytest.fixture
def claim(broker: Broker) -> Callable[[], Lease]:
    seq = iter(range(1, 100_000))

    def claim(queue: str = "default") -> Lease:
        (lease,) = broker.claim(ClaimRequest("w", next(seq), 30_000, 1, 1, 0, [queue])).leases
        return lease

    return claim


def submit(api: Api, type: str = "plain", **members: Any) -> Reply:
    return api.http("POST", "/tasks", {"type": type} | members)


# -- submit


def test_a_task_is_accepted_and_can_be_seen_at_its_location(api: Api) -> None:
    reply = submit(api, payload={"value": 7})

    assert reply.status == 202
    assert is_id(reply.json["id"])
    assert reply.json == {"id": reply.json["id"], "status": "pending"}
    assert reply.headers["location"] == f"/tasks/{reply.json['id']}"
    shown = api.http("GET", reply.headers["location"]).json
    assert shown == {
        "id": reply.json["id"], "type": "plain", "queue": "default", "status": "pending",
        "payload": {"value": 7}, "attempts": 0, "crashes": 0, "losses": 0, "max_attempts": 3,
        "created_at": shown["created_at"],
    }  # fmt: skip
    created = datetime.fromisoformat(shown["created_at"])
    assert shown["created_at"].endswith("Z")
    assert abs(created - datetime.now(UTC)) < timedelta(seconds=5)


def test_options_are_kept(api: Api) -> None:
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="milliseconds")
    reply = submit(api, queue="low", max_attempts=7, timeout_s=1.5, run_at=later)

    assert (reply.status, reply.json["status"]) == (202, "delayed")
    shown = api.http("GET", f"/tasks/{reply.json['id']}").json
    assert (shown["queue"], shown["max_attempts"], shown["timeout_s"]) == ("low", 7, 1.5)
    assert datetime.fromisoformat(shown["run_at"]) == datetime.fromisoformat(later)


def test_a_handlers_own_policy_holds_where_the_request_is_silent(api: Api) -> None:
    id = submit(api, "flaky").json["id"]
    assert api.http("GET", f"/tasks/{id}").json["max_attempts"] == 10


@pytest.mark.parametrize(
    ("run_at", "status"),
    [
        ("2020-01-01T00:00:00Z", "pending"),
        ("2020-01-01t00:00:00.123456789z", "pending"),
        ("2016-12-31T23:59:60Z", "pending"),
        ("2020-01-01T00:00:00+23:59", "pending"),
        ("2020-02-29T12:00:00-00:00", "pending"),
    ],
)
def test_a_time_in_the_past_means_at_once(api: Api, run_at: str, status: str) -> None:
    reply = submit(api, run_at=run_at)
    assert (reply.status, reply.json["status"]) == (202, status)


def test_a_delay_is_from_zero_to_a_year(api: Api) -> None:
    assert submit(api, delay_s=0).json["status"] == "pending"
    assert submit(api, delay_s=0.25).json["status"] == "delayed"
    assert submit(api, delay_s=365 * 86_400).json["status"] == "delayed"
    assert submit(api, delay_s=365 * 86_400 + 1).status == 422


ODD_VALUES = [
    2**63 - 1, -(2**63), 2**64 - 1, 2**53 + 1, 393087288629462191, 0.1, 1e-7, -0.0, 1e308, [], {}, [[]],
    {"a": []}, None, "", True, "\0", "\x1b[31m", "\u202e", "😀", "\\ud800", {"": {"": 1}},
    {"__proto__": 1, "é": [None]},
]  # fmt: skip


def test_payloads_are_given_back_as_they_came(api: Api) -> None:
    for value in ODD_VALUES:
        id = submit(api, "return", payload={"value": value}).json["id"]
        shown = api.http("GET", f"/tasks/{id}")
        assert json.dumps(shown.json["payload"]["value"]) == json.dumps(value)


NOT_JSON = {
    "nothing": b"",
    "white space": b" \r\n",
    "half an object": b'{"type":"plain"',
    "single quotes": b"{'type':'plain'}",
    "a trailing comma": b'{"type":"plain",}',
    "a comment": b'{"type":"plain"} // x',
    "two documents": b'{"type":"plain"}{"type":"plain"}',
    "a form": b"type=plain&payload=1",
    "XML": b"<task/>",
    "NaN": b'{"type":"return","payload":{"value":NaN}}',
    "Infinity": b'{"type":"return","payload":{"value":Infinity}}',
    "minus Infinity": b'{"type":"return","payload":{"value":[-Infinity]}}',
    "a number beyond doubles": b'{"type":"return","payload":{"value":1e999}}',
    "a negative number beyond doubles": b'{"type":"return","payload":{"value":-1e999}}',
    "NaN as an option": b'{"type":"plain","delay_s":NaN}',
    "an option beyond doubles": b'{"type":"plain","delay_s":1e999}',
    "an integer of 65 bits": b'{"type":"return","payload":{"value":18446744073709551616}}',
    "a negative integer of 65 bits": b'{"type":"return","payload":{"value":-9223372036854775809}}',
    "an integer of 5,000 digits": b'{"type":"return","payload":{"value":' + b"9" * 5000 + b"}}",
    "a leading zero": b'{"type":"return","payload":{"value":01}}',
    "a leading plus": b'{"type":"return","payload":{"value":+1}}',
    "a bare point": b'{"type":"return","payload":{"value":.5}}',
    "a hexadecimal number": b'{"type":"return","payload":{"value":0x1}}',
    "a member twice": b'{"type":"plain","type":"plain"}',
    "a member twice, once escaped": b'{"type":"plain","\\u0074ype":"plain"}',
    "a member of the payload twice": b'{"type":"return","payload":{"value":1,"value":2}}',
    "a lone high surrogate": b'{"type":"return","payload":{"value":"\\ud800"}}',
    "a lone low surrogate": b'{"type":"return","payload":{"value":"\\udbef"}}',
    "surrogates in the wrong order": b'{"type":"return","payload":{"value":"\\udc00\\ud800"}}',
    "a lone surrogate as a name": b'{"type":"return","payload":{"\\ud800":1}}',
    "a lone surrogate as the type": b'{"type":"\\ud800"}',
    "Latin-1": b'{"type":"return","payload":{"value":"\xe9"}}',
    "overlong UTF-8": b'{"type":"return","payload":{"value":"\xc0\x80"}}',
    "surrogates in UTF-8": b'{"type":"return","payload":{"value":"\xed\xa0\x80"}}',
    "UTF-16": '{"type":"plain"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"type":"plain"}',
    "a raw control character": b'{"type":"return","payload":{"value":"\x01"}}',
    "a raw line feed": b'{"type":"return","payload":{"value":"a\nb"}}',
    "an escape that is none": b'{"type":"return","payload":{"value":"\\x41"}}',
    "65 levels": b'{"type":"return","payload":{"value":' + b"[" * 63 + b"]" * 63 + b"}}",
    "65 levels of objects": b'{"type":"return","payload":{"value":' + b'{"a":' * 63 + b"1" + b"}" * 65,
    "levels without end": b"[" * 100_000,
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
}  # fmt: skip


def test_what_is_no_strict_json_is_refused_with_400(api: Api, inspector: Inspector) -> None:
    for name, body in NOT_JSON.items():
        for path in ("/tasks", "/tasks/batch"):
            reply = api.http("POST", path, body)
            assert reply.status == 400, (name, reply)
            problem(reply)
    assert inspector.counts().totals.get("submitted", 0) == 0


def test_64_levels_are_allowed(api: Api) -> None:
    body = b'{"type":"return","payload":{"value":' + b"[" * 62 + b"]" * 62 + b"}}"
    assert api.http("POST", "/tasks", body).status == 202


WRONG: dict[str, tuple[Any, str]] = {
    "an array": ([], ""),
    "a string": ("plain", ""),
    "null": (None, ""),
    "a number": (7, ""),
    "no type": ({}, "/type"),
    "a type that is null": ({"type": None}, "/type"),
    "a type that is a number": ({"type": 1}, "/type"),
    "a type that is unknown": ({"type": "nobody"}, "/type"),
    "a type with a line feed": ({"type": "plain\n"}, "/type"),
    "a type with a zero": ({"type": "pla\0in"}, "/type"),
    "a type that is empty": ({"type": ""}, "/type"),
    "a type of 10,000 characters": ({"type": "a" * 10_000}, "/type"),
    "a member that is unknown": ({"type": "plain", "prioritty": 1}, "/prioritty"),
    "a member with a slash": ({"type": "plain", "a/b~c": 1}, "/a~1b~0c"),
    "an id": ({"type": "plain", "id": ID}, "/id"),
    "a payload that is null": ({"type": "plain", "payload": None}, "/payload"),
    "a payload that is an array": ({"type": "plain", "payload": [1]}, "/payload"),
    "a payload that is a string": ({"type": "plain", "payload": "{}"}, "/payload"),
    "an argument of another type": ({"type": "add", "payload": {"a": "7"}}, "/payload/a"),
    "a boolean for a number": ({"type": "add", "payload": {"a": True}}, "/payload/a"),
    "a fraction for a whole number": ({"type": "add", "payload": {"a": 7.0}}, "/payload/a"),
    "an argument that is missing": ({"type": "add"}, "/payload/a"),
    "an argument that is unknown": ({"type": "add", "payload": {"a": 1, "z": 1}}, "/payload/z"),
    "a queue that is null": ({"type": "plain", "queue": None}, "/queue"),
    "a queue that is a number": ({"type": "plain", "queue": 1}, "/queue"),
    "a queue that is empty": ({"type": "plain", "queue": ""}, "/queue"),
    "a queue with a brace": ({"type": "plain", "queue": "a}b"}, "/queue"),
    "a queue with a line feed": ({"type": "plain", "queue": "a\n"}, "/queue"),
    "a queue that is not ASCII": ({"type": "plain", "queue": "é"}, "/queue"),
    "a queue that is too long": ({"type": "plain", "queue": "q" * 101}, "/queue"),
    "a delay that is null": ({"type": "plain", "delay_s": None}, "/delay_s"),
    "a delay that is a string": ({"type": "plain", "delay_s": "5"}, "/delay_s"),
    "a delay that is a boolean": ({"type": "plain", "delay_s": True}, "/delay_s"),
    "a negative delay": ({"type": "plain", "delay_s": -1}, "/delay_s"),
    "a delay over a year": ({"type": "plain", "delay_s": 1e9}, "/delay_s"),
    "a delay of 1e308": ({"type": "plain", "delay_s": 1e308}, "/delay_s"),
    "a time without a zone": ({"type": "plain", "run_at": "2026-12-01T00:00:00"}, "/run_at"),
    "a time that is a date": ({"type": "plain", "run_at": "2026-12-01"}, "/run_at"),
    "a time that is a number": ({"type": "plain", "run_at": 1796000000}, "/run_at"),
    "a time that is null": ({"type": "plain", "run_at": None}, "/run_at"),
    "a time with a space": ({"type": "plain", "run_at": "2026-12-01 00:00:00Z"}, "/run_at"),
    "a day that does not exist": ({"type": "plain", "run_at": "2026-02-30T00:00:00Z"}, "/run_at"),
    "an hour that does not exist": ({"type": "plain", "run_at": "2026-12-01T24:00:00Z"}, "/run_at"),
    "a second that does not exist": ({"type": "plain", "run_at": "2026-12-01T00:00:61Z"}, "/run_at"),
    "an offset that does not exist": ({"type": "plain", "run_at": "2026-12-01T00:00:00+24:00"}, "/run_at"),
    "the year 0": ({"type": "plain", "run_at": "0000-01-01T00:00:00Z"}, "/run_at"),
    "the year 1": ({"type": "plain", "run_at": "0001-01-01T00:00:00+23:59"}, "/run_at"),
    "the year 9999": ({"type": "plain", "run_at": "9999-12-31T23:59:60Z"}, "/run_at"),
    "a time over a year ahead": ({"type": "plain", "run_at": "2999-01-01T00:00:00Z"}, "/run_at"),
    "a time in other digits": ({"type": "plain", "run_at": "２026-12-01T00:00:00Z"}, "/run_at"),
    "a delay and a time": ({"type": "plain", "delay_s": 1, "run_at": "2020-01-01T00:00:00Z"}, "/run_at"),
    "no attempt": ({"type": "plain", "max_attempts": 0}, "/max_attempts"),
    "a negative number of attempts": ({"type": "plain", "max_attempts": -1}, "/max_attempts"),
    "1,001 attempts": ({"type": "plain", "max_attempts": 1001}, "/max_attempts"),
    "2**64-1 attempts": ({"type": "plain", "max_attempts": 2**64 - 1}, "/max_attempts"),
    "attempts as a fraction": ({"type": "plain", "max_attempts": 3.0}, "/max_attempts"),
    "attempts as a string": ({"type": "plain", "max_attempts": "3"}, "/max_attempts"),
    "attempts as a boolean": ({"type": "plain", "max_attempts": True}, "/max_attempts"),
    "no time": ({"type": "plain", "timeout_s": 0}, "/timeout_s"),
    "a negative time": ({"type": "plain", "timeout_s": -1}, "/timeout_s"),
    "a time limit over a year": ({"type": "plain", "timeout_s": 1e10}, "/timeout_s"),
    "a time limit as a string": ({"type": "plain", "timeout_s": "1"}, "/timeout_s"),
    "a key that is empty": ({"type": "plain", "idempotency_key": ""}, "/idempotency_key"),
    "a key of 256 characters": ({"type": "plain", "idempotency_key": "k" * 256}, "/idempotency_key"),
    "a key of 10,000 characters": ({"type": "plain", "idempotency_key": "k" * 10_000}, "/idempotency_key"),
    "a key with a space": ({"type": "plain", "idempotency_key": "a b"}, "/idempotency_key"),
    "a key with a line feed": ({"type": "plain", "idempotency_key": "a\n"}, "/idempotency_key"),
    "a key that is not ASCII": ({"type": "plain", "idempotency_key": "ключ"}, "/idempotency_key"),
    "a key that is a number": ({"type": "plain", "idempotency_key": 1}, "/idempotency_key"),
    "a key that is null": ({"type": "plain", "idempotency_key": None}, "/idempotency_key"),
}  # fmt: skip


def test_wrong_requests_are_refused_with_422_and_a_pointer(api: Api, inspector: Inspector) -> None:
    for name, (document, pointer) in WRONG.items():
        reply = api.http("POST", "/tasks", json.dumps(document).encode())
        assert reply.status == 422, (name, reply)
        assert pointer in [flaw["pointer"] for flaw in problem(reply)["errors"]], (name, reply)

        batch = api.http("POST", "/tasks/batch", {"tasks": [{"type": "plain"}, document]})
        assert batch.status == 422, (name, batch)
        assert "/tasks/1" + pointer in [flaw["pointer"] for flaw in problem(batch)["errors"]], (name, batch)
        assert "/tasks/1" in batch.json["detail"], name
    assert inspector.counts().totals.get("submitted", 0) == 0


def test_however_much_is_to_be_mended_the_answer_is_short(api: Api) -> None:
    process = psutil.Process(api.pid)
    api.http("GET", "/healthz")
    before = process.memory_info().rss
    many = {f"m{n}": n for n in range(400_000)}
    few = dict(list(many.items())[:50_000])
    for path, document in (
        ("/tasks/batch", {"tasks": [{"type": "plain", **many}]}),
        ("/tasks/batch", {"tasks": [{"type": "plain", "x": 1, "y": 2}] * 1_000}),
        ("/tasks", {"type": "plain", **few}),
    ):
        reply = api.http("POST", path, document)
        assert reply.status == 422
        assert len(problem(reply)["errors"]) == 100
        assert "and at least" in reply.json["detail"]
        assert len(reply.body) < 40_000
    assert process.memory_info().rss - before < 250 << 20


def test_every_flaw_of_a_payload_is_told(api: Api) -> None:
    errors = problem(submit(api, "add", payload={"a": "x", "b": None, "c": 1}))["errors"]
    assert {flaw["pointer"] for flaw in errors} == {"/payload/a", "/payload/b", "/payload/c"}


@pytest.mark.parametrize(
    "type",
    [
        "application/json", "Application/JSON", "application/json; charset=utf-8",
        'application/json;charset="UTF-8"', "application/vnd.shop+json", "", "application/json;",
        "application/json; charset=utf-8; x=y", 'application/json; profile="a"',
        'application/json; profile="; charset=latin-1"; charset=utf-8',
    ],
)  # fmt: skip
def test_a_body_that_says_it_is_json_or_nothing_is_read(api: Api, type: str) -> None:
    assert api.http("POST", "/tasks", {"type": "plain"}, headers={"Content-Type": type}).status == 202


@pytest.mark.parametrize(
    "type",
    [
        "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
        "application/xml", "text/json", "application/jsonp", "application/json; charset=latin-1",
        "application/json, text/plain", "json", "application/octet-stream", "application/json x",
        'application/json; profile="a"; charset=latin-1', "application/json;charset*=utf-8''x",
    ],
)  # fmt: skip
def test_a_body_of_another_type_is_refused(api: Api, inspector: Inspector, type: str) -> None:
    for path, body in (("/tasks", {"type": "plain"}), ("/tasks/batch", {"tasks": [{"type": "plain"}]})):
        reply = api.http("POST", path, body, headers={"Content-Type": type})
        assert reply.status == 415
        assert problem(reply)["type"] == "urn:prefork-q:problem:unsupported-media-type"
        assert reply.headers["accept-post"] == "application/json"
    assert inspector.counts().totals.get("submitted", 0) == 0
    # Where no body is needed and none comes, the type says nothing.
    assert api.http("POST", f"/tasks/{ID}/cancel", headers={"Content-Type": type}).status == 404


def test_submissions_at_once_share_calls_and_all_get_their_own(api: Api, redis_client: redis.Redis) -> None:
    redis_client.config_resetstat()
    with ThreadPoolExecutor(30) as pool:
        replies = list(pool.map(lambda n: submit(api, payload={"value": n}), range(300)))

    assert {reply.status for reply in replies} == {202}
    for n, reply in enumerate(replies[::10]):
        assert api.http("GET", f"/tasks/{reply.json['id']}").json["payload"] == {"value": n * 10}
    calls = redis_client.info("commandstats")
    assert calls["cmdstat_evalsha"]["calls"] < 300


def test_a_compressed_body_is_refused(api: Api) -> None:
    reply = api.http("POST", "/tasks", b"{}", headers={"Content-Encoding": "gzip"})
    assert (reply.status, problem(reply)["status"]) == (415, 415)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
)
def test_a_page_of_another_site_changes_nothing(
    api: Api, inspector: Inspector, headers: dict[str, str]
) -> None:
    body = b'{"type":"plain"}'
    assert api.http("POST", "/tasks", body, headers=headers | {"Content-Type": "text/plain"}).status == 403
    assert inspector.counts().totals.get("submitted", 0) == 0
    own = {"Origin": f"http://127.0.0.1:{api.port}", "Sec-Fetch-Site": "same-origin"}
    assert api.http("POST", "/tasks", body, headers=own).status == 202
    assert api.http("GET", "/tasks", headers=headers).status == 200


# -- idempotency


def test_the_same_key_and_request_again_is_the_same_task(api: Api, inspector: Inspector) -> None:
    first = submit(api, payload={"value": 1}, idempotency_key="k")
    again = api.http("POST", "/tasks", b' {"payload" :{"value":1}, "idempotency_key":"k","type":"plain"}')

    assert (first.status, again.status) == (202, 200)
    assert again.json == first.json
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    assert "idempotency-replayed" not in first.headers
    assert inspector.counts().totals["submitted"] == 1


@pytest.mark.parametrize(
    "other",
    [
        {"payload": {"value": 2}},
        {"payload": {}},
        {"type": "return"},
        {"queue": "other"},
        {"delay_s": 1},
        {"max_attempts": 9},
        {"timeout_s": 9},
    ],
)
def test_the_same_key_and_another_request_is_refused(api: Api, other: dict[str, Any]) -> None:
    assert submit(api, payload={"value": 1}, idempotency_key="k").status == 202

    reply = api.http(
        "POST", "/tasks", {"type": "plain", "payload": {"value": 1}, "idempotency_key": "k"} | other
    )

    assert reply.status == 422
    assert problem(reply)["errors"][0]["pointer"] == "/idempotency_key"


@pytest.mark.parametrize("options", [{}, {"max_attempts": 3}, {"queue": "default"}, {"max_attempts": 4}])
def test_the_same_request_of_the_client_is_the_same_task(
    api: Api, server: Server, options: dict[str, Any]
) -> None:
    first = submit(api, payload={"value": 1}, idempotency_key="k", **options)
    with Client(server.url, KEYS.namespace) as client:
        again = client.submit("plain", {"value": 1}, idempotency_key="k", **options)

    assert again.id == first.json["id"]


@pytest.mark.parametrize("header", ["key-1", '"key-1"', ' "key-1" ', "  key-1"])
def test_the_header_is_bare_or_quoted(api: Api, header: str) -> None:
    body = b'{"type":"plain"}'
    first = submit(api, idempotency_key="key-1")
    again = api.http("POST", "/tasks", body, headers={"Idempotency-Key": header})
    both = api.http(
        "POST", "/tasks", b'{"type":"plain","idempotency_key":"key-1"}', headers={"Idempotency-Key": header}
    )

    assert (again.status, both.status) == (200, 200)
    assert again.json["id"] == both.json["id"] == first.json["id"]


def test_escapes_in_a_quoted_key_are_resolved(api: Api) -> None:
    first = api.http("POST", "/tasks", b'{"type":"plain"}', headers={"Idempotency-Key": r'"a\"b\\c"'})
    assert submit(api, idempotency_key='a"b\\c').json["id"] == first.json["id"]


@pytest.mark.parametrize(
    "header",
    [
        "", '""', '"', "a b", '"a b"', '"a', 'a"b c', '"a"; b=1', '"a" "b"', r'"a\b"', "k" * 256, "é", "a, b",
        "a\tb",
    ],
)  # fmt: skip
def test_a_wrong_key_in_the_header_is_refused(api: Api, header: str) -> None:
    body = b'{"type":"plain"}'
    request = b"POST /tasks HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n" % len(body)
    request += b"Idempotency-Key: " + header.encode() + b"\r\n\r\n" + body

    assert api.raw(request) == [422]


def test_keys_of_one_and_of_255_characters_are_taken(api: Api) -> None:
    for key in ("k", "k" * 255, "!~", "a,b;c=d", "*"):
        assert submit(api, idempotency_key=key).status == 202
        assert api.http("POST", "/tasks", b'{"type":"plain"}', headers={"Idempotency-Key": key}).status == 200


def test_another_key_in_the_header_than_in_the_body_is_refused(api: Api) -> None:
    reply = api.http(
        "POST", "/tasks", b'{"type":"plain","idempotency_key":"a"}', headers={"Idempotency-Key": "b"}
    )
    assert reply.status == 422
    problem(reply)


def test_fifty_at_once_with_one_key_are_one_task(api: Api, inspector: Inspector) -> None:
    barrier = threading.Barrier(50)

    def race(_: int) -> Reply:
        barrier.wait()
        return submit(api, payload={"value": 1}, idempotency_key="k")

    with ThreadPoolExecutor(50) as pool:
        replies = list(pool.map(race, range(50)))

    assert sorted(reply.status for reply in replies) == [200] * 49 + [202]
    assert len({reply.json["id"] for reply in replies}) == 1
    assert inspector.counts().totals["submitted"] == 1


def test_two_requests_that_race_for_one_key_have_one_winner(api: Api, inspector: Inspector) -> None:
    barrier = threading.Barrier(40)

    def race(n: int) -> tuple[int, Reply]:
        barrier.wait()
        return n % 2, submit(api, payload={"value": n % 2}, idempotency_key="k")

    with ThreadPoolExecutor(40) as pool:
        replies = list(pool.map(race, range(40)))

    (winner,) = {side for side, reply in replies if reply.status == 202}
    assert {reply.status for side, reply in replies if side == winner} == {200, 202}
    assert {reply.status for side, reply in replies if side != winner} == {422}
    assert inspector.counts().totals["submitted"] == 1


# -- batches


def test_a_batch_is_answered_in_order(api: Api, inspector: Inspector) -> None:
    entries = [{"type": "plain", "payload": {"value": n}} for n in range(1_000)]
    entries[3]["delay_s"] = 60  # type: ignore[assignment]

    reply = api.http("POST", "/tasks/batch", {"tasks": entries})

    assert reply.status == 202
    answers = reply.json["tasks"]
    assert len(answers) == 1_000
    assert [answer["status"] for answer in answers[:5]] == ["pending"] * 3 + ["delayed", "pending"]
    for n in (0, 3, 999):
        task = inspector.get(answers[n]["id"])
        assert task is not None
        assert task.payload == {"value": n}


def test_a_key_in_a_batch_is_replayed_within_it_and_after_it(api: Api) -> None:
    entry = {"type": "plain", "idempotency_key": "k"}
    first = api.http("POST", "/tasks/batch", {"tasks": [entry, {"type": "plain"}, entry]}).json["tasks"]
    again = submit(api, idempotency_key="k")

    assert first[0]["id"] == first[2]["id"] == again.json["id"] != first[1]["id"]
    assert [answer.get("replayed") for answer in first] == [None, None, True]


def test_a_conflict_in_a_batch_refuses_all_of_it(api: Api, inspector: Inspector) -> None:
    submit(api, payload={"value": 1}, idempotency_key="k")
    entries = [{"type": "plain"}, {"type": "plain"}, {"type": "plain", "idempotency_key": "k"}]

    reply = api.http("POST", "/tasks/batch", {"tasks": entries})

    assert reply.status == 422
    assert problem(reply)["errors"][0]["pointer"] == "/tasks/2/idempotency_key"
    assert "/tasks/2" in reply.json["detail"]
    assert inspector.counts().totals["submitted"] == 1


@pytest.mark.parametrize(
    "document",
    [
        [], {}, {"tasks": []}, {"tasks": None}, {"tasks": {}}, {"tasks": "x"}, {"task": []}, 7, None,
        {"tasks": [{"type": "plain"}], "x": 1}, {"tasks": [{"type": "plain"}] * 1_001},
    ],
)  # fmt: skip
def test_what_is_no_batch_is_refused(api: Api, document: Any) -> None:
    reply = api.http("POST", "/tasks/batch", json.dumps(document).encode())
    assert reply.status == 422
    problem(reply)


def test_a_payload_in_a_batch_that_is_too_large_refuses_all_of_it(api: Api, inspector: Inspector) -> None:
    large = {"type": "return", "payload": {"value": "x" * 300_000}}
    reply = api.http("POST", "/tasks/batch", {"tasks": [{"type": "plain"}, large]})

    assert reply.status == 413
    assert "/tasks/1" in problem(reply)["detail"]
    assert inspector.counts().totals.get("submitted", 0) == 0


def test_a_batch_has_no_key_of_its_own(api: Api) -> None:
    reply = api.http("POST", "/tasks/batch", {"tasks": [{"type": "plain"}]}, headers={"Idempotency-Key": "k"})
    assert reply.status == 422


# -- show and wait


@pytest.mark.parametrize("id", [ID, "x", "7", "%00", "%ff%fe", "a" * 1_000, "..", "%2e%2e%2f", "%0a"])
def test_a_task_that_is_not_there_is_404(api: Api, id: str) -> None:
    for method, path in (
        ("GET", f"/tasks/{id}"),
        ("POST", f"/tasks/{id}/cancel"),
        ("GET", f"/tasks/{id}?wait=1"),
    ):
        reply = api.http(method, path)
        assert reply.status == (400 if id == "%ff%fe" else 404), (path, reply)
        problem(reply)


def test_a_result_is_shown_null_too(api: Api, broker: Broker, claim: Callable[[], Lease]) -> None:
    for result in (b"null", b'{"a":[1.5,null]}', b"9223372036854775807"):
        id = submit(api).json["id"]
        assert "result" not in api.http("GET", f"/tasks/{id}").json
        lease = claim()
        broker.complete(lease.id, lease.token, result)

        shown = api.http("GET", f"/tasks/{id}").json

        assert (shown["status"], shown["result"]) == ("succeeded", json.loads(result))
        assert shown["started_at"] <= shown["finished_at"]


def test_an_error_and_the_progress_are_shown(api: Api, broker: Broker, claim: Callable[[], Lease]) -> None:
    id = submit(api).json["id"]
    lease = claim()
    broker.progress([(lease.id, lease.token, b'{"fraction":0.5,"note":"half"}')])
    assert api.http("GET", f"/tasks/{id}").json["progress"] == {"fraction": 0.5, "note": "half"}
    error = {"type": "ValueError", "message": "no", "traceback": "...", "cause": {"signal": 9}}
    broker.fail(lease.id, lease.token, json.dumps(error).encode(), delay=None)

    shown = api.http("GET", f"/tasks/{id}").json

    assert (shown["status"], shown["error"]) == ("dead", error)
    assert "result" not in shown


def test_a_wait_ends_with_the_task(api: Api, broker: Broker, claim: Callable[[], Lease]) -> None:
    id = submit(api).json["id"]
    lease = claim()
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        waiting = pool.submit(api.http, "GET", f"/tasks/{id}?wait=30", timeout=40)
        time.sleep(0.5)
        assert not waiting.done()
        broker.complete(lease.id, lease.token, b"7")
        reply = waiting.result(5)

    assert (reply.json["status"], reply.json["result"]) == ("succeeded", 7)
    assert time.monotonic() - began < 5


def test_a_wait_ends_when_time_is_up(api: Api) -> None:
    id = submit(api).json["id"]
    began = time.monotonic()

    reply = api.http("GET", f"/tasks/{id}?wait=0.7")

    assert (reply.status, reply.json["status"]) == (200, "pending")
    assert 0.6 < time.monotonic() - began < 3


def test_a_wait_for_what_has_ended_is_none(api: Api, broker: Broker) -> None:
    id = submit(api).json["id"]
    broker.cancel(id)
    began = time.monotonic()
    assert api.http("GET", f"/tasks/{id}?wait=30").json["status"] == "cancelled"
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("wait", ["-1", "x", "NaN", "inf", "1e", "", "1,5", "%2b1", "9" * 401])
def test_a_wrong_wait_is_refused(api: Api, wait: str) -> None:
    reply = api.http("GET", f"/tasks/{ID}?wait={wait}")
    assert reply.status == 422
    problem(reply)


def test_many_waits_share_a_connection_and_leave_threads_for_others(
    api: Api, broker: Broker, claim: Callable[[], Lease], redis_client: redis.Redis
) -> None:
    ids = [submit(api).json["id"] for _ in range(20)]
    leases = [claim() for _ in ids]
    with ThreadPoolExecutor(80) as pool:
        # Twice for each task, and more than have room: the rest is told at once.
        waiting = [pool.submit(api.http, "GET", f"/tasks/{id}?wait=20", timeout=40) for id in ids * 4]
        until(lambda: sum(one.done() for one in waiting) >= 80 - 24, 10, "the answers of those without room")
        until(lambda: len(redis_client.pubsub_channels()) > 0, 10)
        assert len(redis_client.client_list(_type="pubsub")) == 1
        began = time.monotonic()
        assert api.http("GET", "/healthz").status == 200
        assert submit(api).status == 202
        assert time.monotonic() - began < 2
        for lease in leases:
            broker.complete(lease.id, lease.token, b"1")
        replies = [one.result(10) for one in waiting]

    assert {reply.json["status"] for reply in replies} == {"processing", "succeeded"}
    assert sum(reply.json["status"] == "succeeded" for reply in replies) >= 20
    until(lambda: redis_client.pubsub_channels() == [], 5, "an end of the subscriptions")


def test_a_wait_asks_redis_only_a_few_times(api: Api, redis_client: redis.Redis) -> None:
    id = submit(api).json["id"]
    redis_client.config_resetstat()

    api.http("GET", f"/tasks/{id}?wait=2")

    calls = redis_client.info("commandstats")
    assert calls["cmdstat_evalsha"]["calls"] <= 4
    assert sum(stats["calls"] for stats in calls.values()) < 30


@pytest.mark.parametrize("more", [b"", b"GET /healthz HTTP/1.1\r\n"])
def test_a_client_that_goes_away_gives_its_room_back(
    api: Api, redis_client: redis.Redis, more: bytes
) -> None:
    id = submit(api).json["id"]
    connections = [api.connect() for _ in range(24)]
    for connection in connections:
        connection.sendall(b"GET /tasks/%s?wait=60 HTTP/1.1\r\nHost: x\r\n\r\n" % id.encode())
    until(lambda: len(redis_client.pubsub_channels()) == 1, 10)
    for connection in connections:
        # Nobody reads it before the answer, and the end stands behind it.
        connection.sendall(more)
        connection.close()

    until(lambda: redis_client.pubsub_channels() == [], 10, "the end of all waits")


# -- lists


def test_lists_are_paged_and_can_be_narrowed(api: Api, broker: Broker, claim: Callable[[], Lease]) -> None:
    pending = {submit(api, queue="a").json["id"] for _ in range(7)}
    delayed = {submit(api, "return", delay_s=60).json["id"] for _ in range(5)}
    cancelled = submit(api, queue="b").json["id"]
    broker.cancel(cancelled)

    assert {task["id"] for task in pages(api, "/tasks?status=pending&limit=3")} == pending
    assert {task["id"] for task in pages(api, "/tasks?status=delayed&limit=2")} == delayed
    assert {task["id"] for task in pages(api, "/tasks?type=return")} == delayed
    assert {task["id"] for task in pages(api, "/tasks?queue=a&limit=4")} == pending
    assert [task["id"] for task in pages(api, "/tasks?status=cancelled")] == [cancelled]
    assert {task["id"] for task in pages(api, "/tasks?limit=1000000")} == pending | delayed | {cancelled}
    assert api.http("GET", "/tasks?status=dead").json == {"tasks": [], "next": None}
    assert len(api.http("GET", "/tasks?limit=4").json["tasks"]) <= 4


def test_what_stays_is_seen_once_while_other_tasks_move(
    api: Api, broker: Broker, claim: Callable[[str], Lease]
) -> None:
    staying = {submit(api, queue="stay").json["id"] for _ in range(60)}
    for _ in range(60):
        submit(api, queue="move")
    is_over = threading.Event()

    def move() -> None:
        while not is_over.is_set():
            lease = claim("move")
            broker.release(lease.id, lease.token)
            submit(api, queue="move")

    mover = threading.Thread(target=move)
    mover.start()
    try:
        for _ in range(5):
            seen = [task["id"] for task in pages(api, "/tasks?status=pending&limit=9")]
            assert staying <= set(seen)
            assert len([id for id in seen if id in staying]) == len(staying)
    finally:
        is_over.set()
        mover.join()


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=-1", "limit=x", "limit=1.5", "limit=", "limit=%C2%B2", "status=lost", "status=",
        "type=a%20b", "queue=%0a", "cursor=x", "cursor=", "cursor=%00", "cursor=W10",
        "cursor=WyJkZWFkIiwiIiwiIiwiIl0", "statsu=dead",
        f"cursor={write_cursor(Cursor('pending', 'q', '²'))}",
        f"status=delayed&cursor={write_cursor(Cursor('delayed', at='abc'))}",
        f"status=delayed&cursor={write_cursor(Cursor('delayed', after='abc'))}",
        "limit=1&limit=2", "cursor=" + "A" * 5_000,
    ],
)  # fmt: skip
def test_wrong_parameters_are_refused(api: Api, query: str) -> None:
    reply = api.http("GET", f"/tasks?status=pending&{query}" if "status" not in query else f"/tasks?{query}")
    assert reply.status == 422
    problem(reply)


def test_a_cursor_of_another_listing_is_refused(api: Api) -> None:
    for _ in range(3):
        submit(api, delay_s=60)
    cursor = api.http("GET", "/tasks?status=delayed&limit=1").json["next"]

    assert api.http("GET", f"/tasks?status=delayed&cursor={cursor}").status == 200
    assert api.http("GET", f"/tasks?status=pending&cursor={cursor}").status == 422
    assert api.http("GET", f"/dead?cursor={cursor}").status == 422


# -- cancel


def test_a_task_that_does_not_run_is_cancelled_at_once(api: Api) -> None:
    for options in ({}, {"delay_s": 60}):
        id = submit(api, **options).json["id"]
        reply = api.http("POST", f"/tasks/{id}/cancel")
        assert (reply.status, reply.json) == (200, {"id": id, "status": "cancelled"})
        assert api.http("GET", f"/tasks/{id}").json["status"] == "cancelled"


def test_a_running_task_is_asked_to_stop(api: Api, broker: Broker, claim: Callable[[], Lease]) -> None:
    id = submit(api).json["id"]
    lease = claim()

    reply = api.http("POST", f"/tasks/{id}/cancel", b"{}")

    assert (reply.status, reply.json["status"]) == (202, "processing")
    assert api.http("GET", f"/tasks/{id}").json["cancel_requested"] is True
    broker.release(lease.id, lease.token)
    assert api.http("GET", f"/tasks/{id}").json["status"] == "cancelled"


def test_what_has_ended_cannot_be_cancelled(api: Api, broker: Broker, claim: Callable[[], Lease]) -> None:
    ids = [submit(api).json["id"] for _ in range(3)]
    leases = [claim() for _ in range(2)]
    broker.complete(leases[0].id, leases[0].token, b"1")
    broker.fail(leases[1].id, leases[1].token, b"{}", delay=None)
    broker.cancel(ids[2])

    for id in ids:
        reply = api.http("POST", f"/tasks/{id}/cancel")
        assert reply.status == 409
        problem(reply)


def test_a_body_where_none_belongs_is_refused(api: Api) -> None:
    id = submit(api).json["id"]
    reply = api.http("POST", f"/tasks/{id}/cancel", {"reason": "x"})
    assert reply.status == 422
    assert api.http("GET", f"/tasks/{id}").json["status"] == "pending"


# -- paths and methods


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/tasks", "GET, HEAD, POST"),
        ("PUT", "/tasks", "GET, HEAD, POST"),
        ("GET", "/tasks/batch", "POST"),
        ("PATCH", f"/tasks/{ID}", "GET, HEAD"),
        ("DELETE", f"/tasks/{ID}", "GET, HEAD"),
        ("GET", f"/tasks/{ID}/cancel", "POST"),
        ("POST", "/dead", "GET, HEAD"),
        ("GET", "/dead/retry", "POST"),
        ("POST", f"/dead/{ID}", "DELETE, GET, HEAD"),
        ("POST", "/queues", "GET, HEAD"),
        ("GET", "/queues/default/pause", "POST"),
        ("POST", "/metrics", "GET, HEAD"),
        ("POST", "/healthz", "GET, HEAD"),
        ("OPTIONS", "/readyz", "GET, HEAD"),
        ("BREW", "/tasks", "GET, HEAD, POST"),
    ],
)
def test_a_wrong_method_is_405_with_what_is_possible(api: Api, method: str, path: str, allowed: str) -> None:
    reply = api.http(method, path)
    assert (reply.status, reply.headers["allow"]) == (405, allowed)
    problem(reply)


@pytest.mark.parametrize(
    "path",
    [
        "/index.html", "/task", "/tasks/", "/tasks/x/y/z", "/openapi", "/dash", "/..", "/%2e%2e", "/metrics/",
        "/healthz%0a", "/queues/default/pause%0a", f"/tasks/{ID}%0A", "/tasks%00",
    ],
)  # fmt: skip
def test_an_unknown_path_is_404(api: Api, path: str) -> None:
    reply = api.http("GET", path)
    assert reply.status == 404
    problem(reply)
