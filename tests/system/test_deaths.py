"""Processes die, stop and hang; tasks do not get lost, and nobody pays for somebody else's crash."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.until import until
from tests.system.test_running import all_ended

StartNode = Callable[..., Node]


def test_the_task_of_a_killed_worker_starts_again_at_once(start_node: StartNode, ledger: Ledger) -> None:
    node = start_node(workers=1, threads=2, lease="30s")
    id = node.submit("die", {"times": 1, "after": 0.3}, max_attempts=1)
    until(lambda: ledger.starts(id), 10, "a start")
    neighbours = node.submit_many("sleep", [{"seconds": 0.2}] * 6, max_attempts=1)

    task = node.ended(id)

    assert (task["status"], task["result"]) == ("succeeded", "survived")
    assert (task["crashes"], task["attempts"]) == (1, 1)
    died, again = ledger.starts(id)[0] + 0.3, ledger.starts(id)[1]
    # Far below the lease, which is what a task without a witness of its worker's death would wait for.
    assert again - died < 5
    for neighbour in map(node.ended, neighbours):
        assert (neighbour["status"], neighbour["attempts"]) == ("succeeded", 1)
        assert neighbour["crashes"] <= 1
    assert node.wait_event("exited", worker=0)["cause"].startswith("killed by signal 9")


def test_the_tasks_of_a_killed_node_are_run_by_another(start_node: StartNode, ledger: Ledger) -> None:
    doomed = start_node(workers=2, lease="2s", no_http=True)
    heir = start_node(workers=2, lease="2s")
    ids = heir.submit_many("sleep", [{"seconds": 0.5}] * 40)
    until(lambda: ledger.pids() & set(doomed.pids()["worker"]), 10, "a part of both nodes")

    doomed.kill("all")

    until(all_ended(heir, 40), 30, "the end of all tasks")
    assert all(heir.task(id)["status"] == "succeeded" for id in ids)
    assert ledger.overlaps() == []


def test_a_task_that_kills_each_worker_is_dead_and_no_neighbour_is(
    start_node: StartNode, ledger: Ledger
) -> None:
    node = start_node(workers=2, threads=8, max_crashes=3)
    good = node.submit_many("spin", [{"seconds": 0.002}] * 500)
    poison = node.submit("segfault", {})
    good += node.submit_many("spin", [{"seconds": 0.002}] * 500)

    until(all_ended(node, 1_001), 60, "the end of all tasks")

    task = node.task(poison)
    assert (task["status"], task["crashes"]) == ("dead", 4)
    assert task["error"]["cause"]["signal"] == signal.SIGSEGV
    assert len(ledger.runs(poison)) == 4
    tasks = [node.task(id) for id in good]
    assert {task["status"] for task in tasks} == {"succeeded"}
    assert max(task["crashes"] for task in tasks) <= 1


def test_a_fault_that_ends_the_worker_when_its_handler_has_returned_is_charged(start_node: StartNode) -> None:
    node = start_node(workers=2)

    task = node.ended(node.submit("leave_a_fault", {}))

    # Unless its result is in Redis before the fault ends the process.
    assert (task["status"], task["crashes"]) == ("dead", 4) or task["status"] == "succeeded"
    assert sum(worker["restarts"] for worker in node.ctl("workers")) <= 4


@pytest.mark.parametrize(("first", "last"), [(3, 1_000), (4, 7)])
def test_a_handler_that_closes_the_workers_descriptors_is_dead_in_the_end(
    start_node: StartNode, first: int, last: int
) -> None:
    node = start_node(workers=1)
    id = node.submit("close_descriptors", {"first": first, "last": last}, max_attempts=1)

    task = node.ended(id)

    assert (task["status"], task["crashes"]) == ("dead", 4)
    assert node.ended(node.submit("add", {"a": 1, "b": 1}))["status"] == "succeeded"


def test_workers_that_die_of_their_tasks_have_been_ready(start_node: StartNode) -> None:
    node = start_node(workers=1, max_crashes=0)
    node.ctl("quiet")
    ids = node.submit_many("exit", [{"code": 7}] * 8)
    node.ctl("resume")

    until(all_ended(node, len(ids)), 30, "the end of all tasks")

    metrics = node.http("GET", "/metrics").body.decode()
    causes = [line for line in metrics.splitlines() if line.startswith("prefork_q_worker_restarts_total{")]
    assert not [line for line in causes if 'cause="birth"' in line and not line.endswith(" 0.0")], causes


def test_a_handler_that_holds_the_interpreter_for_three_leases_runs_once(
    start_node: StartNode, ledger: Ledger
) -> None:
    node = start_node(workers=2, lease="1s")

    task = node.ended(node.submit("hold_gil", {"seconds": 3.5}))

    assert (task["status"], task["attempts"], task["crashes"]) == ("succeeded", 1, 0)
    assert len(ledger.runs(task["id"])) == 1


def test_a_worker_that_was_stopped_past_its_lease_cannot_commit(
    start_node: StartNode, ledger: Ledger
) -> None:
    node = start_node(workers=2, lease="1s")
    id = node.submit("sleep", {"seconds": 3.0})
    until(lambda: ledger.starts(id), 10, "a start")
    stopped = ledger.runs(id)[0].pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        until(lambda: len(ledger.runs(id)) == 2 and ledger.runs(id)[1].ended_at, 20, "a second run")
        task = node.ended(id)
    finally:
        os.kill(stopped, signal.SIGCONT)

    node.wait_event("commit_refused", id=id)
    after = node.task(id)
    assert (after["status"], after["finished_at"]) == ("succeeded", task["finished_at"])
    assert (after["attempts"], after["crashes"]) == (1, 0)
    metrics = node.http("GET", "/metrics").body.decode()
    (line,) = [line for line in metrics.splitlines() if line.startswith("prefork_q_stale_commits_total ")]
    assert float(line.split()[1]) >= 1


def test_workers_that_die_at_birth_come_back_ever_more_slowly(start_node: StartNode, tmp_path: Path) -> None:
    flag = tmp_path / "broken"
    target = tmp_path / "handlers.py"
    target.write_text(
        "import os, pathlib\n"
        "from prefork_q import App\n"
        "app = App()\n"
        "@app.on_worker_start\n"
        "def start() -> None:\n"
        f"    if pathlib.Path({str(flag)!r}).exists():\n"
        "        os._exit(3)\n"
        "@app.task('ok')\n"
        "def ok() -> int:\n"
        "    return 1\n"
    )
    flag.touch()
    node = start_node(workers=1, target=f"{target}:app", wait_ready=False)

    deaths = [node.wait_event("exited", worker=0, count=n, timeout=20) for n in (1, 2, 3, 4)]
    assert deaths[0]["cause"] == "exited 3"
    status = node.status()
    assert status["degraded"]
    assert status["workers"][0]["state"] in ("backoff", "starting")
    assert node.cli("ctl", "status", "--check").returncode == 1
    assert 4 <= len(node.events("exited", worker=0)) <= 6

    flag.unlink()
    node.wait_ready()
    (killed,) = node.kill("worker:0")
    until(lambda: node.pids()["worker:0"] not in ([], [killed]), 5, "a new worker at once")
