"""What a service manager hears of a running node, over a socket of the test's own."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.node import Node
from tests.support.notify import Manager
from tests.support.until import until

pytestmark = pytest.mark.either_server

StartNode = Callable[..., Node]

WATCHDOG = 12.0
"""Seconds that the manager bears without a sign of life, of which three are due in it."""


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    """A manager that listens all the time, so that it knows when it heard what."""
    with Manager(str(tmp_path / "notify")) as manager:
        is_over = threading.Event()

        def listen() -> None:
            while not is_over.wait(0.02):
                manager.received()

        listener = threading.Thread(target=listen)
        listener.start()
        yield manager
        is_over.set()
        listener.join()


def environ(manager: Manager) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": str(int(WATCHDOG * 1e6))}


def heard(manager: Manager, name: str) -> list[str]:
    return [message[name] for _, message in list(manager.times) if name in message]


def signs(manager: Manager, since: float = 0.0) -> list[float]:
    return [at for at, message in list(manager.times) if "WATCHDOG" in message and at >= since]


def states(manager: Manager) -> list[str]:
    changes = ("READY", "RELOADING", "STOPPING")
    return [name for _, message in list(manager.times) for name in message if name in changes]


def test_a_node_tells_its_whole_life_and_only_its_master_does(
    start_node: StartNode, manager: Manager
) -> None:
    node = start_node(environ=environ(manager), workers=2, wait_ready=False)
    until(lambda: "READY" in states(manager), 30, "ready")
    status = node.status()
    assert status["state"] == "running"
    assert {worker["state"] for worker in status["workers"]} == {"ready"}
    assert node.http("GET", "/readyz").status == 200
    assert node.ended(node.submit("sleep", {"seconds": 0.01}))["status"] == "succeeded"

    node.ctl("reload", "--wait")
    until(lambda: states(manager) == ["READY", "RELOADING", "READY"], 30, "the reload")
    running = node.submit("sleep", {"seconds": 1.5})
    until(lambda: node.task(running)["status"] == "processing", 10)
    assert node.stop() == 0

    assert states(manager) == ["READY", "RELOADING", "READY", "STOPPING"]
    sentences = heard(manager, "STATUS")
    assert sentences[0].startswith("starting: ")
    assert any(text.startswith("2/2 workers, ") and text.endswith(" pending") for text in sentences)
    assert any(text.startswith("draining: 1 task running, at most ") for text in sentences)
    assert heard(manager, "EXTEND_TIMEOUT_USEC")
    assert manager.senders == {node.pid}


def test_signs_of_life_come_in_time_under_full_load_and_end_with_the_masters(
    start_node: StartNode, manager: Manager
) -> None:
    node = start_node(environ=environ(manager), workers=4)
    node.submit_many("spin", [{"seconds": 1}] * 60)
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 14, 20, "fourteen busy seconds", every=0.1)

    assert max(after - before for before, after in pairwise(signs(manager))) <= WATCHDOG / 2

    node.send(signal.SIGSTOP)
    time.sleep(0.2)
    stopped_at = time.monotonic()
    time.sleep(WATCHDOG / 2)
    assert signs(manager, since=stopped_at) == []
    node.send(signal.SIGCONT)
    until(lambda: signs(manager, since=stopped_at), 5, "signs of life after it goes on")


def test_no_sign_of_life_comes_when_no_worker_is_sound(start_node: StartNode, manager: Manager) -> None:
    node = start_node(environ=environ(manager), workers=2)
    workers = node.kill("worker", signal.SIGSTOP)
    assert len(workers) == 2

    node.wait_event("watchdog_not_fed", timeout=20)
    silent_since = time.monotonic()
    time.sleep(WATCHDOG / 2)
    assert signs(manager, since=silent_since) == []

    node.kill("worker", signal.SIGCONT)
    until(lambda: signs(manager, since=silent_since), 20, "signs of life")
