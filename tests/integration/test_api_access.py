"""Who may do what over HTTP: tokens and their scopes, other sites, the audit log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prefork_q.cli.rereading import require_same
from prefork_q.config import load
from prefork_q.errors import ConfigurationError
from prefork_q.keys import Keys
from tests.support.api import Api, statuses_in
from tests.support.http import problem
from tests.support.node import Node, Reply
from tests.support.server import Server
from tests.support.until import until

pytestmark = pytest.mark.either_server

ID = "01a227f4-944d-7407-9c4f-0afb90b9c9e5"
"""No task has it."""
SECRETS = {name: f"secret-of-{name}-0123456789" for name in ("submit", "read", "admin", "all")}
TOKENS = "".join(
    f"{name}-er {'submit,read,admin' if name == 'all' else name} {secret}\n"
    for name, secret in SECRETS.items()
)
REQUESTS = {
    ("POST", "/tasks"): "submit",
    ("POST", "/tasks/batch"): "submit",
    ("GET", "/tasks"): "read",
    ("GET", f"/tasks/{ID}"): "read",
    ("POST", f"/tasks/{ID}/cancel"): "admin",
    ("GET", "/dead"): "read",
    ("GET", f"/dead/{ID}"): "read",
    ("POST", "/dead/retry"): "admin",
    ("POST", f"/dead/{ID}/retry"): "admin",
    ("DELETE", f"/dead/{ID}"): "admin",
    ("GET", "/queues"): "read",
    ("POST", "/queues/default/pause"): "admin",
    ("POST", "/queues/default/resume"): "admin",
    ("GET", "/metrics"): "read",
    ("GET", "/node"): "read",
    ("GET", "/readyz"): "read",
    ("GET", "/openapi.json"): "read",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(TOKENS)
    file.chmod(0o600)
    return file


@pytest.fixture
def api(server: Server, keys: Keys, file: Path, tmp_path: Path) -> Iterator[Api]:
    api = Api(server.url, tmp_path / "api", namespace=keys.namespace, token_file=[str(file)])
    yield api.start()
    api.close()


@pytest.fixture
def open_api(server: Server, keys: Keys, tmp_path: Path) -> Iterator[Api]:
    api = Api(server.url, tmp_path / "open", namespace=keys.namespace)
    yield api.start()
    api.close()


def ask(api: Api, method: str, path: str, body: object = None, *, token: str | None = None) -> Reply:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return api.http(method, path, body, headers=headers)


def test_each_request_needs_its_scope_and_health_none(api: Api) -> None:
    for (method, path), scope in REQUESTS.items():
        reply = ask(api, method, path)
        assert reply.status == 401, path
        assert problem(reply)["type"] == "urn:prefork-q:problem:unauthorized"
        assert reply.headers["www-authenticate"] == 'Bearer realm="prefork-q"'
        for name, secret in SECRETS.items():
            status = ask(api, method, path, token=secret).status
            assert (status != 403) is (name in (scope, "all")), (path, name, status)
            assert status != 401, path
    assert api.http("GET", "/healthz").status == 200


def test_a_refusal_names_the_scope_that_is_missing(api: Api) -> None:
    reply = ask(api, "POST", "/dead/retry", token=SECRETS["read"])

    assert reply.status == 403
    assert problem(reply)["type"] == "urn:prefork-q:problem:missing-scope"
    assert "the scope admin" in problem(reply)["detail"]
    assert 'error="insufficient_scope", scope="admin"' in reply.headers["www-authenticate"]


@pytest.mark.parametrize(
    "header",
    [
        "Bearer", "Bearer ", "Bearer nobody-has-this-token", "Basic c3VibWl0OnN1Ym1pdA==", "Token x", "",
        f"Bearer {SECRETS['all']} x", f"Bearer {SECRETS['all']},", f'Bearer "{SECRETS["all"]}"',
        f"Bearer {SECRETS['all'].upper()}", SECRETS["all"], f"Bearer{SECRETS['all']}",
    ],
)  # fmt: skip
def test_what_is_no_known_token_is_refused(api: Api, header: str) -> None:
    reply = api.http("GET", "/tasks", headers={"Authorization": header})

    assert reply.status == 401
    assert 'error="invalid_token"' in reply.headers["www-authenticate"]
    problem(reply)


def test_the_word_bearer_is_read_in_any_case_and_two_headers_are_none(api: Api) -> None:
    assert api.http("GET", "/tasks", headers={"Authorization": f"bearer  {SECRETS['all']}"}).status == 200
    line = f"Authorization: Bearer {SECRETS['all']}\r\n".encode()
    assert api.raw(b"GET /tasks HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + line * 2 + b"\r\n") == [401]


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"", 401),
        (b"Authorization: Bearer nobody-has-this-token\r\n", 401),
        (f"Authorization: Bearer {SECRETS['read']}\r\n".encode(), 403),
        (f"Authorization: Bearer {SECRETS['all']}\r\nOrigin: http://evil.example\r\n".encode(), 403),
    ],
)
@pytest.mark.parametrize("length", [b"Content-Length: 8000000\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_who_may_not_send_a_body_is_told_before_it_is_sent(
    api: Api, header: bytes, status: int, length: bytes
) -> None:
    head = b"POST /tasks/batch HTTP/1.1\r\nHost: x\r\n" + header + length + b"\r\n"

    began = time.monotonic()
    answer = api.raw_answer(head)

    assert statuses_in(answer) == [status]
    assert b"application/problem+json" in answer
    assert (b"www-authenticate" in answer.lower()) is (b"Origin" not in header)
    assert time.monotonic() - began < 5
    assert len(api.events("audited")) == (1 if header.startswith(b"Auth") and b"read" in header else 0)


def test_who_may_send_a_body_can_take_his_time_for_it(api: Api) -> None:
    body = b'{"type":"plain"}'
    head = f"POST /tasks HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRETS['submit']}\r\n"
    head += f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"

    assert api.raw(head.encode(), body[:5], body[5:]) == [202]
    assert len(api.events("audited")) == 1


def test_nothing_is_done_for_a_request_without_a_token(api: Api) -> None:
    for token in (None, "nobody-has-this-token", SECRETS["read"]):
        assert ask(api, "POST", "/tasks", {"type": "plain"}, token=token).status in (401, 403)

    assert ask(api, "GET", "/tasks", token=SECRETS["read"]).json["tasks"] == []


def test_every_write_is_in_the_audit_log_with_the_tokens_name(api: Api) -> None:
    secret = SECRETS["all"]
    id = ask(api, "POST", "/tasks", {"type": "plain"}, token=secret).json["id"]
    ask(api, "POST", "/tasks", {"type": "nobody"}, token=secret)
    ask(api, "POST", "/tasks/batch", {"tasks": [{"type": "plain"}] * 3}, token=secret)
    ask(api, "POST", f"/tasks/{id}/cancel", token=secret)
    ask(api, "POST", "/queues/default/pause", token=secret)
    ask(api, "DELETE", f"/dead/{ID}", token=SECRETS["read"])
    ask(api, "GET", "/tasks", token=secret)

    own = ("ts", "role", "api", "pid")
    lines = [{k: v for k, v in line.items() if k not in own} for line in api.events("audited")]
    batch = lines.pop(2)
    common = {"level": "info", "event": "audited", "token": "all-er", "method": "POST"}
    assert lines == [
        common | {"path": "/tasks", "status": 202, "id": id},
        common | {"path": "/tasks", "status": 422},
        common | {"path": f"/tasks/{id}/cancel", "status": 200, "id": id},
        common | {"path": "/queues/default/pause", "status": 200, "name": "default"},
        common | {"path": f"/dead/{ID}", "status": 403, "token": "read-er", "method": "DELETE"},
    ]
    assert (batch["status"], batch["tasks"], batch["token"]) == (202, 3, "all-er")
    assert not any(secret in api.log() for secret in SECRETS.values())


def test_requests_without_a_token_are_told_once_a_second(api: Api) -> None:
    for _ in range(30):
        ask(api, "GET", "/tasks", token="nobody-has-this-token")

    assert 1 <= len(api.events("unauthorized")) <= 3
    assert "nobody-has-this-token" not in api.log()


def test_without_tokens_the_verbs_of_operators_are_in_the_audit_log(open_api: Api) -> None:
    open_api.http("POST", "/tasks", {"type": "plain"})
    open_api.http("POST", "/queues/default/pause")

    (line,) = open_api.events("audited")
    assert (line["path"], line["status"], "token" in line) == ("/queues/default/pause", 200, False)


def test_changed_tokens_hold_within_a_second_and_wrong_ones_change_nothing(api: Api, file: Path) -> None:
    def write(text: str) -> None:
        file.with_name("new").write_text(text)
        os.replace(file.with_name("new"), file)

    def status(secret: str) -> int:
        return ask(api, "GET", "/tasks", token=secret).status

    began = time.monotonic()
    write(f"new read {'n' * 20}\n")
    until(lambda: status("n" * 20) == 200, 5)
    assert time.monotonic() - began < 2
    assert status(SECRETS["all"]) == 401
    assert api.events("tokens_reloaded")

    write("nonsense\n")
    until(lambda: status("n" * 20) and api.events("tokens_rejected"), 5)
    assert status("n" * 20) == 200
    assert "line 1" in api.events("tokens_rejected")[0]["reason"]


def test_a_site_whose_name_points_here_is_refused(open_api: Api, api: Api) -> None:
    reply = open_api.http("GET", "/tasks", headers={"Host": f"evil.example:{open_api.port}"})
    assert reply.status == 421
    problem(reply)
    # A token is nothing that a browser adds by itself.
    token = {"Authorization": f"Bearer {SECRETS['all']}"}
    assert api.http("GET", "/tasks", headers={"Host": "tasks.example"} | token).status == 200


def test_the_host_of_an_absolute_target_counts(open_api: Api) -> None:
    def ask(target: str, host: str) -> list[int]:
        request = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        return open_api.raw(request.encode())

    assert ask("http://evil.example/queues", "localhost") == [421]
    assert ask("HTTPS://evil.example:80?limit=1", "localhost") == [421]
    assert ask("http://localhost/queues", "evil.example") == [200]


def test_no_other_origin_is_told_that_it_may_read(open_api: Api) -> None:
    for method in ("GET", "OPTIONS"):
        reply = open_api.http(method, "/tasks", headers={"Origin": "http://evil.example"})
        assert not [name for name in reply.headers if name.startswith("access-control")]


def test_with_tokens_a_node_may_listen_anywhere(
    start_node: Callable[..., Node], file: Path, tmp_path: Path
) -> None:
    node = start_node(http="0.0.0.0:0", token_file=str(file), wait_ready=False)
    place = node.wait_event("listening")["http"]

    assert place.startswith("0.0.0.0:")
    node.port = int(place.rpartition(":")[2])
    headers = {"Authorization": f"Bearer {SECRETS['all']}"}
    until(lambda: node.http("GET", "/readyz", headers=headers).status == 200, 20)
    assert node.http("GET", "/readyz").status == 401


@pytest.mark.parametrize("command", ["run", "api"])
def test_wrong_or_no_tokens_are_refused_at_the_start(server: Server, file: Path, command: str) -> None:
    node = Node(server.url, file.parent / "node")
    target = node._target
    common = ("--redis-url", server.url, "--state-dir", str(file.parent / "state"), "--http", "0.0.0.0:0")

    bare = node.cli(command, target, *common)
    assert (bare.returncode, "token" in bare.stderr) == (78, True), bare
    file.write_text("nonsense\n")
    wrong = node.cli(command, target, *common, "--token-file", str(file))
    assert (wrong.returncode, "line 1" in wrong.stderr) == (78, True), wrong
    missing = node.cli(command, target, *common, "--token-file", str(file) + "x")
    assert (missing.returncode, "No such file" in missing.stderr) == (78, True), missing


def test_a_reload_does_not_take_the_tokens_away(file: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"token_file = '{file}'\n")
    before = load({}, {}, config)
    config.write_text("")

    with pytest.raises(ConfigurationError, match="token_file cannot be taken away"):
        require_same(before, load({}, {}, config))
    require_same(load({}, {}, config), before)
