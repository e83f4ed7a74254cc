"""The dashboard as it is served: headers, who gets it, and that no other site can use what it uses."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefork_q.api.answers import Route
from prefork_q.api.breaker import Breaker
from prefork_q.api.create import assemble
from prefork_q.api.dashboard import SCRIPTS
from prefork_q.api.openapi import template
from prefork_q.api.reading import SAFE_METHODS
from prefork_q.config import load
from tests.support.api import Api
from tests.support.http import problem
from tests.support.node import Node

WEB = Path(__file__).parents[2] / "prefork_q" / "api" / "web"
TOKEN = "a-token-for-every-scope"
FOREIGN = [
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:9"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:9"},
]


NOWHERE = "redis://127.0.0.1:1/0"
"""No server: what is asked here is answered without one."""


def started(folder: Path, **options: object) -> Iterator[Api]:
    api = Api(NOWHERE, folder, **options)
    yield api.start()
    api.close()


@pytest.fixture(scope="module")
def api(no_process_left: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Without tokens."""
    yield from started(tmp_path_factory.mktemp("open"))


@pytest.fixture(scope="module")
def guarded_api(no_process_left: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """With tokens."""
    folder = tmp_path_factory.mktemp("guarded")
    tokens = folder / "tokens"
    tokens.write_text(f"all submit,read,admin {TOKEN}\n")
    yield from started(folder, token_file=[str(tokens)])


def writes() -> list[tuple[str, str]]:
    """Return all requests that change something, as the application has them."""
    _, routes = assemble(load({}, {}), {}, Breaker())
    return [(route.method, filled(route)) for route in routes if route.method not in SAFE_METHODS]


def filled(route: Route) -> str:
    return template(route.rule).format(id="01a227f4-944d-7407-9c4f-0afb90b9c9e5", name="default")


def policy_of(text: str) -> dict[str, str]:
    return dict(part.strip().split(" ", 1) for part in text.split(";"))


def test_the_page_says_what_a_browser_may_do_with_it(api: Api) -> None:
    reply = api.http("GET", "/")

    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = policy_of(reply.headers["content-security-policy"])
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["base-uri"] == policy["trusted-types"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert "unsafe" not in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert reply.headers["x-frame-options"] == "DENY"
    assert reply.headers["cross-origin-opener-policy"] == "same-origin"
    assert reply.headers["cross-origin-resource-policy"] == "same-origin"
    assert reply.headers["cache-control"] == "no-store"
    assert "set-cookie" not in reply.headers


def test_the_policy_allows_the_one_script_and_the_one_style_of_the_page(api: Api) -> None:
    reply = api.http("GET", "/")
    page, policy = reply.body.decode(), policy_of(reply.headers["content-security-policy"])

    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[f"{tag}-src"] == f"'sha256-{digest}'"
        assert len(text) > 1000
    assert not re.search(r"\s(on\w+|style)=", page.partition("<script")[0])
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page.partition("<script")[0])


def test_every_file_of_the_page_is_in_it(api: Api) -> None:
    page = api.http("GET", "/").body.decode()
    for name in SCRIPTS:
        assert (WEB / name).read_text() in page
    assert {path.name for path in WEB.iterdir()} == {*SCRIPTS, "index.html", "style.css"}


def test_no_text_is_ever_made_into_html() -> None:
    for path in WEB.glob("*.js"):
        text = path.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
            assert word not in text, (path.name, word)


def test_the_page_needs_neither_a_token_nor_redis_and_has_no_data(api: Api, guarded_api: Api) -> None:
    reply = guarded_api.http("GET", "/")

    assert reply.status == 200
    assert reply.body == api.http("GET", "/").body
    assert guarded_api.http("GET", "/node").status == 401
    assert guarded_api.http("HEAD", "/").headers["content-length"] == str(len(reply.body))
    assert guarded_api.http("POST", "/").status == 405


@pytest.mark.parametrize("headers", FOREIGN, ids=lambda headers: ",".join(headers.values()))
@pytest.mark.parametrize("has_tokens", [False, True])
def test_a_page_of_another_site_can_use_no_endpoint_that_changes_something(
    api: Api, guarded_api: Api, headers: dict[str, str], has_tokens: bool
) -> None:
    asked = guarded_api if has_tokens else api
    token = {"Authorization": f"Bearer {TOKEN}"} if has_tokens else {}
    assert len(writes()) >= 8

    for method, path in writes():
        # As a form or fetch(…, {mode: "no-cors"}) sends them: without asking first.
        for body in (None, b"", b'{"type":"plain"}'):
            reply = asked.http(method, path, body, headers=headers | token | {"Content-Type": "text/plain"})
            assert (reply.status, problem(reply)["type"]) == (403, "urn:prefork-q:problem:cross-site"), path


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example.", "LOCALHOST.evil.example"]
)
def test_a_name_that_was_made_to_point_here_reaches_nothing(api: Api, host: str) -> None:
    site = f"{host}:{api.port}"
    own = {"Host": site, "Origin": f"http://{site}", "Sec-Fetch-Site": "same-origin"}
    for method, path in [*writes(), ("GET", "/"), ("GET", "/tasks"), ("GET", "/node"), ("GET", "/queues")]:
        assert api.http(method, path, headers=own).status == 421, path


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "pq.localhost"])
def test_the_page_is_answered_under_the_names_of_this_machine(api: Api, host: str) -> None:
    site = f"{host}:{api.port}"
    own = {"Host": site, "Origin": f"http://{site}", "Sec-Fetch-Site": "same-origin"}
    assert api.http("GET", "/", headers=own).status == 200
    # It is admitted, and only Redis is missing.
    assert api.http("POST", "/queues/default/pause", headers=own).status == 503


def test_the_node_is_shown_as_ctl_status_shows_it(node: Node) -> None:
    reply = node.http("GET", "/node")

    assert reply.status == 200
    told = reply.json
    assert (told["state"], told["degraded"], len(told["workers"])) == ("running", [], 2)
    worker = told["workers"][0]
    assert {"slot", "pid", "state", "running", "held", "rss_bytes", "pss_bytes", "restarts"} <= set(worker)
    assert node.http("GET", "/node?x=1").status == 422


def test_an_api_without_a_node_says_so(api: Api) -> None:
    reply = api.http("GET", "/node")
    assert reply.status == 404
    assert "without workers" in problem(reply)["detail"]
