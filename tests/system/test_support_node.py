from __future__ import annotations

import signal
from collections.abc import Callable

import psutil
import pytest

from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.until import until

pytestmark = pytest.mark.either_server


def test_a_node_runs_a_task_and_stops_with_nothing_left(node: Node, ledger: Ledger) -> None:
    task = node.ended(node.submit("return", {"value": [1, "two"]}))

    assert task["status"] == "succeeded"
    assert task["result"] == [1, "two"]
    (run,) = ledger.runs(task["id"])
    assert (run.attempt, run.outcome) == (1, "returned")
    assert run.pid in node.pids()["worker"]

    assert node.stop() == 0
    assert node.leftovers() == []


def test_the_processes_of_a_node_are_known_by_role(node: Node) -> None:
    pids = node.pids()

    assert pids["master"] == [node.pid]
    assert len(pids["worker"]) == 2
    assert all(len(pids[role]) == 1 for role in ("template", "keeper", "api"))
    assert {pid for role in pids.values() for pid in role} <= {process.pid for process in node.processes()}


def test_a_role_is_killed_and_comes_back(node: Node) -> None:
    (killed,) = node.kill("worker:1")

    until(lambda: node.pids()["worker:1"] not in ([], [killed]), 10, "another process in slot 1")


def test_all_of_a_node_can_be_killed(node: Node) -> None:
    pids = node.kill("all")

    assert node.exit_code == -signal.SIGKILL
    until(lambda: node.leftovers() == [], 5, "the end of all")
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)


def test_a_node_that_cannot_start_shows_why(start_node: Callable[..., Node]) -> None:
    with pytest.raises(AssertionError, match=r"exited 78(.|\n)*no_such_module"):
        start_node(target="no_such_module:app")
