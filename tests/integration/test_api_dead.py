"""`/dead`, `/queues` and `/metrics` over HTTP."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from prefork_q.broker import Broker
from prefork_q.keys import Keys
from prefork_q.leases import ClaimRequest, Lease, Limits
from tests.support.api import Api
from tests.support.flavours import Flavour
from tests.support.http import pages, problem
from tests.support.server import Server

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
def claim(broker: Broker) -> Callable[..., list[Lease]]:
    seq = iter(range(1, 100_000))

    def claim(n: int = 1, queue: str = "default") -> list[Lease]:
        return broker.claim(ClaimRequest("w", next(seq), 30_000, n, n, 0, [queue])).leases

    return claim


@pytest.fixture
def kill(api: Api, broker: Broker, claim: Callable[..., list[Lease]]) -> Callable[..., list[str]]:
    """Make dead tasks and return their ids, the oldest first."""

    def kill(n: int = 1, type: str = "plain") -> list[str]:
        entries = [{"type": type, "payload": {"value": k}} for k in range(n)]
        ids = [task["id"] for task in api.http("POST", "/tasks/batch", {"tasks": entries}).json["tasks"]]
        for lease in claim(n):
            broker.fail(lease.id, lease.token, b'{"type":"ValueError","message":"no"}', delay=None)
        return ids

    return kill


def test_the_dead_are_paged_the_newest_first(api: Api, kill: Callable[..., list[str]]) -> None:
    old = kill(3)
    time.sleep(0.002)
    new = kill(4)

    listed = [task["id"] for task in pages(api, "/dead?limit=2")]

    assert set(listed[:4]) == set(new)
    assert set(listed[4:]) == set(old)
    assert len(listed) == 7
    (first,) = api.http("GET", "/dead?limit=1").json["tasks"]
    assert (first["status"], first["attempts"]) == ("dead", 1)
    assert first["error"] == {"type": "ValueError", "message": "no"}


def test_one_of_the_dead_is_shown_and_nothing_else(api: Api, kill: Callable[..., list[str]]) -> None:
    (id,) = kill()
    pending = api.http("POST", "/tasks", {"type": "plain"}).json["id"]

    assert api.http("GET", f"/dead/{id}").json == api.http("GET", f"/tasks/{id}").json
    for other in (pending, ID, "x", "%0a"):
        reply = api.http("GET", f"/dead/{other}")
        assert reply.status == 404
        problem(reply)


def test_a_retry_begins_anew(
    api: Api, broker: Broker, claim: Callable[..., list[Lease]], kill: Callable[..., list[str]]
) -> None:
    (id,) = kill()

    reply = api.http("POST", f"/dead/{id}/retry")

    assert (reply.status, reply.json) == (202, {"id": id, "status": "pending"})
    shown = api.http("GET", f"/tasks/{id}").json
    assert (shown["status"], shown["attempts"], shown["crashes"]) == ("pending", 0, 0)
    assert "error" not in shown
    assert api.http("GET", "/dead").json["tasks"] == []
    (lease,) = claim()
    broker.complete(lease.id, lease.token, b"1")
    assert api.http("GET", f"/tasks/{id}").json["status"] == "succeeded"


def test_only_the_dead_can_be_retried_or_deleted(api: Api) -> None:
    pending = api.http("POST", "/tasks", {"type": "plain"}).json["id"]
    for id in (pending, ID, "x"):
        for method, path in (("POST", f"/dead/{id}/retry"), ("DELETE", f"/dead/{id}")):
            reply = api.http(method, path)
            assert reply.status == 404, path
            problem(reply)
    assert api.http("GET", f"/tasks/{pending}").json["status"] == "pending"


def test_a_retry_takes_no_body(api: Api, kill: Callable[..., list[str]]) -> None:
    (id,) = kill()
    assert api.http("POST", f"/dead/{id}/retry", {"delay_s": 5}).status == 422
    assert api.http("POST", f"/dead/{id}/retry", b"not json").status == 400
    assert api.http("POST", f"/dead/{id}/retry", b"{}").status == 202


def test_what_is_deleted_is_gone_and_counted(api: Api, kill: Callable[..., list[str]]) -> None:
    first, second = kill(2)

    reply = api.http("DELETE", f"/dead/{first}")

    assert (reply.status, reply.body) == (204, b"")
    assert api.http("GET", f"/tasks/{first}").status == 404
    assert api.http("DELETE", f"/dead/{first}").status == 404
    assert [task["id"] for task in api.http("GET", "/dead").json["tasks"]] == [second]
    assert totals(api)["removed_total"] == 1


def test_many_are_retried_by_type_by_age_and_up_to_a_number(
    api: Api, redis_client: redis.Redis, kill: Callable[..., list[str]]
) -> None:
    kill(5)
    others = kill(4, "return")
    hour_ago = time.time() - 3600
    redis_client.zadd(KEYS("dead"), dict.fromkeys(others[:2], hour_ago * 1000))
    earlier = datetime.fromtimestamp(hour_ago + 60, UTC).isoformat()

    def retry(**body: Any) -> Any:
        reply = api.http("POST", "/dead/retry", body)
        assert reply.status == 202, reply
        return reply.json

    assert retry(type="nobody") == {"retried": 0, "more": False}
    assert retry(before=earlier) == {"retried": 2, "more": False}
    assert retry(type="return", limit=1)["retried"] == 1
    assert retry(type="return")["retried"] == 1
    assert len(pages(api, "/dead")) == 5
    assert api.http("POST", "/dead/retry").json == {"retried": 5, "more": False}
    assert pages(api, "/dead") == []
    assert len(pages(api, "/tasks?status=pending")) == 9


def test_more_than_one_call_can_take_are_retried_in_one_request(
    api: Api, kill: Callable[..., list[str]]
) -> None:
    for _ in range(3):
        kill(600)
    assert api.http("POST", "/dead/retry", {"limit": 1500}).json == {"retried": 1500, "more": True}
    assert api.http("POST", "/dead/retry", {"limit": 99_999}).json == {"retried": 300, "more": False}


@pytest.mark.parametrize(
    "body",
    [
        {"type": 1}, {"type": None}, {"type": ""}, {"type": "a b"}, {"before": 1}, {"before": "yesterday"},
        {"before": None}, {"limit": 0}, {"limit": "1"}, {"limit": True}, {"limit": 1.0}, {"typ": "plain"},
        [], "x", 7,
    ],
)  # fmt: skip
def test_a_wrong_choice_of_the_dead_is_refused(api: Api, kill: Callable[..., list[str]], body: Any) -> None:
    kill(1)
    reply = api.http("POST", "/dead/retry", body)
    assert reply.status == 422
    problem(reply)
    assert len(pages(api, "/dead")) == 1


def test_no_type_is_not_any_type(api: Api, kill: Callable[..., list[str]]) -> None:
    kill(1)

    (flaw,) = problem(api.http("POST", "/dead/retry", {"type": ""}))["errors"]

    assert flaw["pointer"] == "/type"
    assert api.http("GET", "/dead?type=").status == 422
    schema = api.http("GET", "/openapi.json").json["components"]["schemas"]["Choice"]["properties"]["type"]
    assert re.search(schema["pattern"], "") is None


# -- queues


def test_queues_tell_what_waits_in_them(api: Api) -> None:
    assert api.http("GET", "/queues").json == {"queues": []}
    for queue in ("low", "low", "a/b@c"):
        api.http("POST", "/tasks", {"type": "plain", "queue": queue})

    queues = {queue.pop("name"): queue for queue in api.http("GET", "/queues").json["queues"]}

    assert set(queues) == {"low", "a/b@c"}
    assert 0 <= queues["low"].pop("oldest_pending_age_s") < 5
    assert queues["low"] == {"pending": 2, "paused": False, "submitted_total": 2}


@pytest.mark.parametrize("queue", ["default", "a/b@c", "pause", "a/pause"])
def test_a_queue_is_paused_and_resumed(api: Api, claim: Callable[..., list[Lease]], queue: str) -> None:
    api.http("POST", "/tasks", {"type": "plain", "queue": queue})

    for _ in range(2):
        reply = api.http("POST", f"/queues/{queue}/pause")
        assert (reply.status, reply.json) == (200, {"name": queue, "paused": True})
    assert api.http("GET", "/queues").json["queues"][0]["paused"] is True
    assert claim(1, queue) == []
    for _ in range(2):
        reply = api.http("POST", f"/queues/{queue}/resume")
        assert (reply.status, reply.json) == (200, {"name": queue, "paused": False})
    assert len(claim(1, queue)) == 1


def test_a_queue_that_somebody_works_on_is_paused_before_its_first_task(
    api: Api, broker: Broker, claim: Callable[..., list[Lease]]
) -> None:
    broker.register("elsewhere", {"ready": 1, "queues": ["fresh"]})

    assert api.http("POST", "/queues/fresh/pause").status == 200
    (queue,) = api.http("GET", "/queues").json["queues"]
    api.http("POST", "/tasks", {"type": "plain", "queue": "fresh"})

    assert queue == {
        "name": "fresh", "pending": 0, "paused": True, "submitted_total": 0, "oldest_pending_age_s": 0.0,
    }  # fmt: skip
    assert claim(1, "fresh") == []


def test_an_unknown_queue_is_404(api: Api) -> None:
    for name in ("nobody", "%0a", "a%7Db", "a" * 1_000):
        for verb in ("pause", "resume"):
            reply = api.http("POST", f"/queues/{name}/{verb}")
            assert reply.status == 404
            problem(reply)


# -- metrics


def totals(api: Api) -> dict[str, Any]:
    reply = api.http("GET", "/metrics", headers={"Accept": "application/json"})
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    document: dict[str, Any] = reply.json
    return document


def test_the_numbers_of_the_namespace_are_exact(
    api: Api, broker: Broker, claim: Callable[..., list[Lease]], kill: Callable[..., list[str]]
) -> None:
    kill(2)
    api.http("POST", "/tasks/batch", {"tasks": [{"type": "plain"}] * 6})
    api.http("POST", "/tasks", {"type": "plain", "delay_s": 60})
    first, second, third = claim(3)
    broker.complete(first.id, first.token, b"1")
    broker.fail(second.id, second.token, b"{}", delay=60)
    broker.release(third.id, third.token)
    claim(1)
    api.http("POST", f"/tasks/{api.http('GET', '/tasks?status=pending').json['tasks'][0]['id']}/cancel")

    age = (numbers := totals(api)).pop("oldest_pending_age_s")

    assert 0 <= age < 5
    assert numbers == {
        "pending": 2, "processing": 1, "delayed": 2, "dead": 2, "submitted_total": 9, "completed_total": 1,
        "failed_total": 3, "retried_total": 1, "dead_total": 2, "cancelled_total": 1, "crashes_total": 0,
        "released_total": 1, "removed_total": 0, "completed_per_minute": 1, "failed_per_minute": 3,
    }  # fmt: skip


def test_prometheus_gets_text(api: Api, kill: Callable[..., list[str]]) -> None:
    kill(2)
    api.http("POST", "/tasks/batch", {"tasks": [{"type": "plain", "queue": "low"}] * 3})

    reply = api.http("GET", "/metrics")

    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = reply.body.decode().splitlines()
    assert 'prefork_q_tasks{queue="low",state="pending"} 3.0' in lines
    assert 'prefork_q_tasks{queue="default",state="pending"} 0.0' in lines
    assert 'prefork_q_tasks{queue="",state="dead"} 2.0' in lines
    assert "prefork_q_tasks_submitted_total 5.0" in lines
    assert 'prefork_q_oldest_pending_age_seconds{queue="default"} 0.0' in lines
    assert any(line.startswith('prefork_q_build_info{version="') for line in lines)


@pytest.mark.parametrize(
    ("accepted", "is_json"),
    [
        ("application/json", True),
        ("application/json;q=0.5", True),
        ("Application/JSON", True),
        ("text/plain;q=0.5, application/json", True),
        ("text/plain, application/json;q=0.5", False),
        ("application/json, text/plain, */*", True),
        ("application/json;q=0.5, text/plain;q=0.5", True),
        ("application/json;q=0, text/plain;q=0", False),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;"
            "q=0.5,*/*;q=0.2",
            False,
        ),
        ("application/json;q=0", False),
        ("application/json;q=x", False),
        ("*/*", False),
        ("text/html,*/*;q=0.8", False),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        ("", False),
        (";;,,=", False),
    ],
)
def test_the_format_is_what_the_client_prefers(api: Api, accepted: str, is_json: bool) -> None:
    reply = api.http("GET", "/metrics", headers={"Accept": accepted})
    assert reply.status == 200
    assert (reply.headers["content-type"] == "application/json") is is_json


def test_openmetrics_is_spoken_too(api: Api) -> None:
    reply = api.http("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    assert reply.body.endswith(b"# EOF\n")


@pytest.mark.parametrize("version", ["abc", "", "1.0.0.0.x", "1.", "2.x", "9.9.9"])
def test_a_version_of_openmetrics_that_is_none_is_answered_as_text(api: Api, version: str) -> None:
    reply = api.http("GET", "/metrics", headers={"Accept": f"application/openmetrics-text;version={version}"})
    assert reply.status == 200


# -- probes


def test_it_is_not_ready_while_no_worker_is(api: Api) -> None:
    assert api.http("GET", "/healthz").json == {"status": "ok"}
    reply = api.http("GET", "/readyz")
    assert (reply.status, problem(reply)["detail"]) == (503, "no worker is ready")


def test_without_a_master_the_workers_of_any_node_count(api: Api, broker: Broker) -> None:
    broker.register("elsewhere", {"ready": 2})
    reply = api.http("GET", "/readyz")
    assert (reply.status, reply.json) == (200, {"status": "ready", "workers": 2})
