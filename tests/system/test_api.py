"""The API as part of a running node: what it asks the master, and what its processes survive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from prometheus_client.parser import text_string_to_metric_families

from tests.bench.one_key import race
from tests.support.node import Node
from tests.support.until import until


def samples(node: Node) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the Prometheus text as {(name, labels): value}."""
    text = node.http("GET", "/metrics").body.decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def counted_by_type(node: Node) -> float:
    """The sum of what the node itself counts for its types: attempts, what became of them, durations."""
    return sum(
        value
        for (name, labels), value in samples(node).items()
        if name.endswith(("_total", "_count")) and dict(labels).keys() == {"type"}
    )


def test_it_is_ready_when_a_worker_is_and_not_when_none_is(node: Node) -> None:
    assert node.http("GET", "/readyz").json == {"status": "ready", "workers": 2}

    node.kill("template")
    node.kill("worker")
    until(lambda: node.http("GET", "/readyz").status == 503, 5)
    until(lambda: node.http("GET", "/readyz").status == 200, 15)


def test_a_client_that_waits_is_answered_when_its_task_ends(node: Node) -> None:
    id = node.submit("sleep", {"seconds": 1})
    began = time.monotonic()

    reply = node.http("GET", f"/tasks/{id}?wait=30", timeout=40)

    assert (reply.json["status"], reply.json["result"]) == ("succeeded", 1)
    assert 0.5 < time.monotonic() - began < 3


def test_the_numbers_agree_with_a_count_from_outside(node: Node) -> None:
    payloads = [{"value": n} for n in range(300)]
    node.submit_many("plain", payloads)
    failing = node.submit_many("raise", [{}] * 5, max_attempts=2)
    node.submit_many("plain", [{}] * 3, delay_s=3600)
    until(lambda: all(node.http("GET", f"/dead/{id}").status == 200 for id in failing), 20)
    until(lambda: node.http("GET", "/tasks?status=processing").json["tasks"] == [], 20)
    # A worker counts an attempt when it has heard from Redis what became of it.
    until(lambda: counted_by_type(node) == 310 + (5 + 5) + 310, 5, "all counts of the node")

    numbers = node.http("GET", "/metrics", headers={"Accept": "application/json"}).json
    found = samples(node)

    assert numbers | {"oldest_pending_age_s": 0} == {
        "pending": 0, "processing": 0, "delayed": 3, "dead": 5, "submitted_total": 308,
        "completed_total": 300,
        "failed_total": 10, "retried_total": 5, "dead_total": 5, "cancelled_total": 0, "crashes_total": 0,
        "released_total": 0, "removed_total": 0, "completed_per_minute": 300, "failed_per_minute": 10,
        "oldest_pending_age_s": 0,
    }  # fmt: skip
    assert found["prefork_q_tasks_submitted_total", ()] == 308
    for name, type, number in (
        ("completed", "plain", 300), ("failed", "raise", 10), ("retried", "raise", 5), ("dead", "raise", 5),
    ):  # fmt: skip
        assert found[f"prefork_q_tasks_{name}_total", (("type", type),)] == number
    assert found["prefork_q_task_duration_seconds_count", (("type", "plain"),)] == 300
    assert found["prefork_q_task_duration_seconds_bucket", (("le", "+Inf"), ("type", "raise"))] == 10
    assert found["prefork_q_workers", (("state", "ready"),)] == 2
    assert found["prefork_q_tasks", (("queue", ""), ("state", "delayed"))] == 3


def test_numbers_never_fall_and_always_add_up(node: Node) -> None:
    is_over = threading.Event()

    def load() -> None:
        while not is_over.is_set():
            node.submit_many("flaky", [{"failures": 1}] * 20)

    loader = threading.Thread(target=load)
    loader.start()
    before: dict[str, float] = {}
    try:
        for _ in range(60):
            numbers = node.http("GET", "/metrics", headers={"Accept": "application/json"}).json
            assert all(value >= 0 for value in numbers.values())
            assert numbers["submitted_total"] == (
                numbers["pending"] + numbers["processing"] + numbers["delayed"] + numbers["dead"]
                + numbers["completed_total"] + numbers["cancelled_total"] + numbers["removed_total"]
            )  # fmt: skip
            totals = {name: value for name, value in numbers.items() if name.endswith("_total")}
            assert all(totals[name] >= value for name, value in before.items())
            before = totals
            time.sleep(0.02)
    finally:
        is_over.set()
        loader.join()


def test_the_number_of_series_does_not_grow_with_what_clients_send(node: Node) -> None:
    node.submit("plain")
    before = len(samples(node))
    for n in range(50):
        node.http("POST", "/tasks", {"type": f"unknown-{n}"})
        node.http("GET", f"/nothing/{n}")

    assert len(samples(node)) == before


def test_a_killed_api_process_is_replaced_and_the_socket_never_refuses(
    start_node: Callable[..., Node],
) -> None:
    node = start_node(api_processes=2)
    first = node.pids()["api"]
    assert len(first) == 2
    refused: list[Exception] = []
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            try:
                node.http("GET", "/healthz")
            except ConnectionRefusedError as error:
                refused.append(error)
            except OSError:
                # Asked of the process that was killed.
                continue

    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            pool.submit(ask)
        node.kill("api")
        until(lambda: len(node.pids()["api"]) == 2 and not set(node.pids()["api"]) & set(first), 15)
        node.submit("plain")
        is_over.set()

    assert refused == []


def test_a_probe_is_answered_while_every_core_is_busy(start_node: Callable[..., Node]) -> None:
    node = start_node(workers=4)
    node.submit_many("spin", [{"seconds": 4}] * 4)
    until(
        lambda: node.http("GET", "/metrics", headers={"Accept": "application/json"}).json["processing"] == 4,
        10,
    )

    times = []
    for _ in range(10):
        began = time.monotonic()
        assert node.http("GET", "/readyz").status == 200
        times.append(time.monotonic() - began)

    assert sorted(times)[5] < 0.5


def test_two_hundred_requests_with_one_key_over_several_processes_are_one_task(
    start_node: Callable[..., Node],
) -> None:
    node = start_node(workers=1, api_processes=3)

    for n in range(3):
        statuses, ids = race(node.port, 200, f"key-{n}")
        assert statuses == {200: 199, 202: 1}
        (id,) = ids
        node.ended(id)
        assert len(node.ledger.runs(id)) == 1
    assert node.metrics()["submitted_total"] == 3
