"""What every thread does can be asked at any time, also of who cannot answer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.until import until

pytestmark = pytest.mark.either_server

StartNode = Callable[..., Node]

ANSWER = 2.0
"""Seconds that `ctl` may take; it is given twice that on a busy machine."""


def threads_of(worker: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {thread["name"]: thread for thread in worker["threads"]}


def test_each_thread_of_each_worker_is_shown_also_while_the_interpreter_is_held(
    start_node: StartNode, ledger: Ledger
) -> None:
    node = start_node(workers=2, threads=2)
    held = node.submit("hold_gil", {"seconds": 8})
    until(lambda: ledger.starts(held), 10, "a start")
    (holder,) = ledger.pids()
    began = time.monotonic()

    workers = node.ctl("stacks")

    assert time.monotonic() - began < 2 * ANSWER
    assert [worker["answered"] for worker in workers] == [True, True]
    by_pid = {worker["pid"]: threads_of(worker) for worker in workers}
    idle = next(threads for pid, threads in by_pid.items() if pid != holder)
    assert {"MainThread", "processor-0", "processor-1"} <= set(idle)
    assert "worker/worker.py" in idle["MainThread"]["stack"]
    busy = [thread for thread in by_pid[holder].values() if "in hold_gil" in thread["stack"]]
    assert [thread["task"] for thread in busy] == [held]
    assert busy[0]["name"].startswith("processor-")
    assert "MainThread" in by_pid[holder]
    text = node.cli("ctl", "stacks").stdout
    assert f"runs hold_gil {held} (most recent call last):" in text
    assert node.ended(held)["status"] == "succeeded"


def test_a_stopped_worker_does_not_hold_up_the_answer_and_shows_in_the_status(start_node: StartNode) -> None:
    node = start_node(workers=2)
    (stopped,) = node.pids()["worker:0"]
    os.kill(stopped, signal.SIGSTOP)
    try:
        until(lambda: any("stopped" in reason for reason in node.status()["degraded"]), 10, "a reason")
        workers = node.ctl("stacks")
        assert {worker["slot"]: worker["answered"] for worker in workers} == {0: False, 1: True}
        check = node.cli("ctl", "status", "--check")
        assert (check.returncode, "worker 0: stopped" in check.stdout) == (1, True)
        assert node.http("GET", "/readyz").status == 200
        assert node.pids()["worker:0"] == [stopped]
    finally:
        os.kill(stopped, signal.SIGCONT)
    until(lambda: not node.status()["degraded"], 10, "a node that is well")


def test_usr2_writes_the_stacks_to_the_log(start_node: StartNode, ledger: Ledger) -> None:
    node = start_node(workers=1)
    id = node.submit("sleep", {"seconds": 3})
    until(lambda: ledger.starts(id), 10, "a start")

    node.send(signal.SIGUSR2)

    line = node.wait_event("stack", thread="processor-0")
    assert (line["worker"], line["task"], line["type"]) == (0, id, "sleep")
    assert "in sleep" in line["stack"]
    node.wait_event("stack", thread="MainThread")
    assert node.status()["state"] == "running"


def test_abrt_writes_the_stacks_and_dies(start_node: StartNode, ledger: Ledger) -> None:
    node = start_node(workers=1, drain_timeout="3s")
    id = node.submit("sleep", {"seconds": 1})
    until(lambda: ledger.starts(id), 10, "a start")

    node.send(signal.SIGABRT)

    assert node.wait(10) == -signal.SIGABRT
    assert "in sleep" in node.wait_event("stack", thread="processor-0")["stack"]
    # The master's own, from whatever it was doing.
    assert "Fatal Python error: Aborted" in node.log()
    assert "master.py" in node.log()
    # The children end by themselves, what runs included.
    until(lambda: not node.leftovers(), 15, "an end of all processes")
    assert ledger.ends(id)
