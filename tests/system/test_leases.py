"""A lease lasts as long as its holder lives, and ends soon after: never by the age of a task."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from prefork_q.keys import Keys
from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.server import Server
from tests.support.state import State
from tests.support.until import until

StartNode = Callable[..., Node]

REAP = 1.2
"""Seconds between two looks of a reaper at most."""
BUSY = 3.0
"""Seconds for a machine that does other things too."""


@pytest.fixture
def state(server: Server, keys: Keys) -> State:
    return State(server.client(), keys)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_tasks_of_many_leases_run_once_while_reapers_look_on(
    start_node: StartNode, ledger: Ledger, state: State
) -> None:
    # Two seconds after it should have renewed, a keeper that was held up still holds its leases.
    nodes = [start_node(workers=2, threads=5, lease="3s") for _ in range(2)]
    ids = nodes[0].submit_many("sleep", [{"seconds": 12.0}] * 20, max_attempts=1)

    assert {nodes[1].ended(id, 40)["status"] for id in ids} == {"succeeded"}

    assert ledger.times_run() == dict.fromkeys(ids, 1)
    assert state.total("expired") == 0
    assert [node.events("lease_expired") for node in nodes] == [[], []]


def test_the_task_of_a_node_that_is_gone_comes_back_after_its_lease_whatever_its_limit(
    start_node: StartNode, ledger: Ledger
) -> None:
    lease = 3.0
    doomed = start_node(workers=1, lease=f"{lease}s", no_http=True)
    heir = start_node(workers=1, lease=f"{lease}s")
    heir.ctl("quiet")
    id = heir.submit("sleep", {"seconds": 15}, timeout_s=6 * 3600, max_attempts=1)
    until(lambda: ledger.starts(id), 10, "a start")
    heir.ctl("resume")

    doomed.kill("all")
    killed_at = time.time()

    until(lambda: len(ledger.starts(id)) == 2, lease + REAP + BUSY, "a second start")
    # Renewed a third of a lease ago at the latest; the heir's keeper was there all the time.
    assert lease * 0.6 - REAP < ledger.starts(id)[1] - killed_at <= lease + REAP + BUSY


def test_who_comes_back_after_another_has_finished_changes_nothing(
    start_node: StartNode, ledger: Ledger, state: State
) -> None:
    node = start_node(workers=2, lease="1s")
    id = node.submit("token", {"seconds": 3.0})
    until(lambda: ledger.starts(id), 10, "a start")
    first = ledger.runs(id)[0]
    with stopped(first.pid):
        until(lambda: len(ledger.runs(id)) == 2, 20, "a second run")
        task = node.ended(id)
        second = ledger.runs(id)[1]
        assert task["result"] == second.token > first.token

    refused = node.wait_event("commit_refused", id=id)
    assert node.task(id) == task
    assert refused["pid"] == first.pid
    assert stale_commits(node) == len(node.events("commit_refused")) == 1
    assert (task["attempts"], task["crashes"]) == (1, 0)
    state.assert_sums()


def test_who_comes_back_while_another_still_runs_changes_nothing(
    start_node: StartNode, ledger: Ledger, state: State
) -> None:
    # The second run ends as long after the first as it began: a lease and a reaper's interval.
    node = start_node(workers=2, lease="2s")
    id = node.submit("token", {"seconds": 4.0})
    until(lambda: ledger.starts(id), 10, "a start")
    first = ledger.runs(id)[0]
    with stopped(first.pid):
        until(lambda: len(ledger.runs(id)) == 2, 20, "a second run")

    node.wait_event("commit_refused", id=id, pid=first.pid)
    during = node.task(id)
    task = node.ended(id)

    assert during["status"] == "processing"
    assert task["result"] == ledger.runs(id)[1].token
    assert (task["status"], task["attempts"], task["crashes"]) == ("succeeded", 1, 0)
    assert len(ledger.runs(id)) == 2
    assert stale_commits(node) == 1
    state.assert_sums()


def test_two_runs_of_one_task_have_one_child(start_node: StartNode, ledger: Ledger, state: State) -> None:
    node = start_node(workers=2, lease="1s")
    id = node.submit("parent", {"seconds": 3.0})
    until(lambda: ledger.starts(id), 10, "a start")
    with stopped(ledger.runs(id)[0].pid):
        until(lambda: len(ledger.runs(id)) == 2, 20, "a second run")
        child = node.ended(id)["result"]
    node.wait_event("commit_refused", id=id)

    assert [run.outcome for run in ledger.runs(id)] == ["returned", "returned"]
    assert node.ended(child)["result"] == id
    assert [run.id for run in ledger.runs(type="return")] == [child]
    assert state.total("submitted") == 2


def test_a_limit_is_that_of_its_task_and_none_is_none(start_node: StartNode) -> None:
    node = start_node(workers=1, threads=3, lease="1s", grace="500ms")
    short = node.submit("sleep", {"seconds": 4.0}, timeout_s=1, max_attempts=1)
    node.ended(short)  # a task that is killed at its limit takes its neighbours along, uncharged
    long = node.submit("sleep", {"seconds": 4.0}, timeout_s=10, max_attempts=1)
    none = node.submit("sleep", {"seconds": 4.0}, max_attempts=1)

    assert node.task(short)["error"]["type"].endswith("TaskTimeout")
    assert [node.ended(id)["status"] for id in (long, none)] == ["succeeded"] * 2


@pytest.mark.parametrize("given", ["file", "environment", "flag"])
def test_the_lease_that_was_set_is_the_lease(
    start_node: StartNode, tmp_path: object, ledger: Ledger, given: str, state: State
) -> None:
    file = f"{tmp_path}/config.toml"
    with open(file, "w", encoding="utf-8") as config:
        config.write("lease = '7s'\n" if given == "file" else "lease = '20s'\n")
    environ = {} if given == "file" else {"PREFORK_Q_LEASE": "7s" if given == "environment" else "15s"}
    flag = {"lease": "7s"} if given == "flag" else {}
    node = start_node(workers=1, config=file, environ=environ, **flag)

    assert node.events("started")[0]["lease_s"] == 7
    assert node.status()["lease_s"] == 7
    id = node.submit("sleep", {"seconds": 2})
    until(lambda: ledger.starts(id), 10, "a start")
    assert 7 * 0.6 < state.expiry(id) <= 7


def stale_commits(node: Node) -> float:
    metrics = node.http("GET", "/metrics").body.decode()
    (line,) = [line for line in metrics.splitlines() if line.startswith("prefork_q_stale_commits_total ")]
    return float(line.split()[1])
