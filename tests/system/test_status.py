"""`ctl status` as a probe: the right exit code in time, whatever hangs, however many ask."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from prefork_q.control.client import ask
from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.server import Server
from tests.support.until import until

pytestmark = pytest.mark.either_server

StartNode = Callable[..., Node]

LIMIT = 20.0
"""Seconds. How long the start of a program takes is the machine's; one that hangs is ended."""


def probed(node: Node) -> int:
    """The exit code of `ctl status`: 75 unless the answer has come within two seconds."""
    return node.cli("ctl", "status", timeout=LIMIT).returncode


def test_the_socket_of_a_killed_node_is_no_node(start_embedded: StartNode) -> None:
    node = start_embedded(workers=1)
    assert probed(node) == 0

    node.kill("all")

    assert node.ctl_socket.exists()
    assert probed(node) == 3
    node.start()
    assert probed(node) == 0


def test_without_redis_the_answer_comes_and_says_so(start_node: StartNode, own_server: Server) -> None:
    node = start_node(url=own_server.url, workers=2)
    own_server.pause()
    try:
        until(lambda: not node.status()["redis"]["reachable"], 15, "the outage to be known")
        assert probed(node) == 1
        assert "redis: unreachable" in node.status()["degraded"]
    finally:
        own_server.resume()
    until(lambda: probed(node) == 0, 15, "a healthy node", every=0.2)


def test_a_process_that_somebody_stopped_is_told_of(start_node: StartNode) -> None:
    node = start_node(workers=1)
    (api,) = node.pids()["api"]
    os.kill(api, signal.SIGSTOP)
    try:
        (reason,) = until(lambda: node.ctl("status")["degraded"], 10, "a reason")
        assert reason == "api 0: stopped (state T), continue it with SIGCONT"
        assert node.cli("ctl", "status").returncode == 1
    finally:
        os.kill(api, signal.SIGCONT)
    until(lambda: node.ctl("status")["degraded"] == [], 10, "a node that is well")


def test_an_order_whose_asker_has_given_up_is_not_carried_out(start_node: StartNode) -> None:
    node = start_node(workers=1)
    (master,) = node.pids()["master"]
    os.kill(master, signal.SIGSTOP)
    try:
        assert node.cli("ctl", "scale", "+1").returncode == 75
    finally:
        os.kill(master, signal.SIGCONT)

    assert node.ctl("scale", "+1")["workers"] == 2


def test_many_busy_workers_and_many_callers_are_no_hindrance(
    start_embedded: StartNode, ledger: Ledger
) -> None:
    node = start_embedded(workers=64, drain_timeout="500ms")
    # Most leave the processors to other tests.
    for type, n in (("sleep", 60), ("hold_gil", 2), ("spin", 2)):
        node.submit_many(type, [{"seconds": 60}] * n)
    until(lambda: len(ledger.running()) == 64, 30, "work in all of them")

    def call(number: int) -> tuple[float, int]:
        began = time.monotonic()
        status = ask(node.ctl_socket, "status")
        return time.monotonic() - began, sum(len(worker["running"]) for worker in status["workers"])

    with ThreadPoolExecutor(100) as callers:
        answers = callers.map(call, range(100))
        took, running = zip(*answers, strict=True)

    assert max(took) < 2.0
    assert set(running) == {64}
    assert probed(node) == 0
