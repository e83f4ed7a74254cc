"""The timed drain, the deaths of the master and of Redis: nothing is lost, nobody is left."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.server import Server
from tests.support.until import until
from tests.system.test_running import all_ended

StartNode = Callable[..., Node]


def test_a_stop_under_load_is_bounded_and_loses_nothing(start_node: StartNode, ledger: Ledger) -> None:
    node = start_node(workers=2, threads=4, drain_timeout="3s")
    ids = node.submit_many("sleep", [{"seconds": 0.2}] * 200)
    ids += node.submit_many("stubborn", [{"seconds": 20}] * 2)
    ids += node.submit_many("sleep", [{"seconds": 0.2}] * 100)
    until(lambda: len(ledger.ends()) > 20, 20, "some of the work")

    started = time.monotonic()
    assert node.stop(timeout=8) == 0
    took = time.monotonic() - started

    assert node.leftovers() == []
    # The promise is the drain timeout and a second; the rest is for a busy machine.
    assert took < 3 + 1 + 1
    heir = start_node(workers=2, threads=8)
    numbers = heir.metrics()
    assert numbers["submitted_total"] == len(ids)
    until(lambda: heir.metrics()["completed_total"] >= len(ids) - 2, 40, "the end of all that sleep")
    ended = [run.id for run in ledger.runs() if run.outcome == "returned"]
    assert len(ended) == len(set(ended))
    assert ledger.overlaps() == []


def test_an_idle_service_ends_at_once(node: Node) -> None:
    started = time.monotonic()

    assert node.stop() == 0

    assert time.monotonic() - started < 2
    assert node.leftovers() == []


def test_the_children_of_a_killed_master_stop_and_leave_nothing(
    start_node: StartNode, ledger: Ledger
) -> None:
    node = start_node(workers=2, drain_timeout="2s")
    ids = node.submit_many("sleep", [{"seconds": 0.5}] * 40)
    until(lambda: len(ledger.running()) == 2, 10, "work")

    node.kill("master")
    killed_at = time.time()

    until(lambda: node.leftovers() == [], 10, "an end of all children")
    assert [run for run in ledger.runs() if run.started_at > killed_at + 1] == []
    heir = start_node(workers=4)
    until(all_ended(heir, 40), 40, "the end of all tasks")
    assert all(heir.task(id)["status"] == "succeeded" for id in ids)
    assert ledger.overlaps() == []


def test_redis_is_killed_and_comes_back_under_load(
    start_node: StartNode, own_server: Server, ledger: Ledger
) -> None:
    node = start_node(url=own_server.url, workers=2, threads=2)
    accepted = node.submit_many("sleep", [{"seconds": 0.02}] * 300)
    until(lambda: len(ledger.ends()) > 30, 20, "some of the work")
    workers = node.pids()["worker"]

    own_server.kill()
    status = node.http("POST", "/tasks", {"type": "return", "payload": {}}).status
    assert status == 503
    own_server.start()

    until(lambda: node.http("GET", "/readyz").status == 200, 20, "a ready node")
    accepted += node.submit_many("return", [{}] * 50)
    until(all_ended(node, 350), 60, "the end of all tasks")
    assert all(node.task(id)["status"] == "succeeded" for id in accepted)
    assert node.pids()["worker"] == workers


def test_quit_returns_what_runs_and_exits_now(start_node: StartNode, ledger: Ledger) -> None:
    node = start_node(workers=1, drain_timeout="30s")
    id = node.submit("sleep", {"seconds": 20}, max_attempts=1)
    until(lambda: ledger.starts(id), 10, "a start")

    started = time.monotonic()
    assert node.stop(signal.SIGQUIT, timeout=10) == 0

    # The promise is one second; the rest is for a busy machine.
    assert time.monotonic() - started < 1 + 1
    heir = start_node(workers=1)
    until(lambda: len(ledger.runs(id)) == 2, 10, "a second run")
    assert heir.task(id)["attempts"] == 1
