"""Orders to stop, to a node at work: every signal, to one process or to all, and handlers that are deaf."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prefork_q.ipc.fork import NODE_SIGNALS
from prefork_q.keys import Keys
from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.state import State
from tests.support.until import until
from tests.system.test_running import all_ended

pytestmark = pytest.mark.either_server

StartNode = Callable[..., Node]

SLACK = 1.0
"""Seconds for a busy machine."""


@pytest.fixture
def observer(start_node: StartNode) -> Node:
    """Another node of the namespace, whose workers have another queue: it tells what becomes of tasks."""
    return start_node(workers=1, queues="other", lease="2s")


@pytest.fixture
def state(server: Server, keys: Keys) -> Iterator[State]:
    with server.client() as client:
        yield State(client, keys)


def assert_given_back(state: State, id: str) -> None:
    """It waits again, at the head of its queue, with nothing to its charge."""
    task = state.task(id)
    assert task["status"] == "pending"
    assert (task.get("attempts", "0"), task.get("crashes", "0")) == ("0", "0")
    assert state.pending()[0] == id
    assert state.ids("processing") == []


def seconds_to_end(node: Node, number: signal.Signals, timeout: float = 30.0) -> float:
    """Send the master a signal and wait for its end; return what it took."""
    sent = time.monotonic()
    node.stop(number, timeout)
    return time.monotonic() - sent


@contextmanager
def looked_at(node: Node, id: str) -> Iterator[list[int]]:
    """Ask for a task all the time; gives the statuses of the answers."""
    answers: list[int] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.02):
            answers.append(node.http("GET", f"/tasks/{id}").status)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield answers
    finally:
        is_over.set()
        looker.join()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_what_runs_ends_and_nothing_else_begins(
    start_embedded: StartNode, ledger: Ledger, number: signal.Signals
) -> None:
    node = start_embedded(workers=2, threads=2, drain_timeout="20s")
    running = node.submit_many("sleep", [{"seconds": 4.0}] * 4, max_attempts=1)
    until(lambda: len(ledger.running()) == 4, 10, "work")
    waiting = node.submit_many("return", [{}] * 30, max_attempts=1)

    took = seconds_to_end(node, number)

    assert node.exit_code == 0
    assert took < 4.0 + SLACK
    assert node.leftovers() == []
    assert {run.id: run.outcome for run in ledger.runs()} == dict.fromkeys(running, "returned")
    node.start()
    tasks = [node.ended(id) for id in (*running, *waiting)]
    assert {(task["status"], task["attempts"], task["crashes"]) for task in tasks} == {("succeeded", 1, 0)}
    assert set(ledger.times_run().values()) == {1}


def test_a_signal_to_the_whole_group_is_one_drain(start_embedded: StartNode, ledger: Ledger) -> None:
    node = start_embedded(workers=2, threads=2, drain_timeout="20s")
    ids = node.submit_many("sleep", [{"seconds": 1.5}] * 4, max_attempts=1)
    until(lambda: len(ledger.running()) == 4, 10, "work")

    os.killpg(node.pid, signal.SIGTERM)

    assert node.wait(10) == 0
    assert node.leftovers() == []
    assert [run.outcome for run in ledger.runs()] == ["returned"] * 4
    # Nobody was made anew but the server, which has to outlive the workers.
    assert len([event for event in node.events("ready") if "worker" in event]) == 2
    assert not node.events("handed_back")
    node.start()
    tasks = [node.ended(id) for id in ids]
    assert {(task["status"], task["attempts"], task["crashes"]) for task in tasks} == {("succeeded", 1, 0)}
    assert len(ledger.runs()) == 4


def test_a_worker_that_is_told_alone_ends_its_tasks_and_has_one_heir(
    start_embedded: StartNode, ledger: Ledger
) -> None:
    node = start_embedded(workers=2)
    ids = node.submit_many("sleep", [{"seconds": 1.5}] * 2, max_attempts=1)
    until(lambda: len(ledger.running()) == 2, 10, "work")
    (told,), (other,) = node.pids()["worker:0"], node.pids()["worker:1"]

    os.kill(told, signal.SIGTERM)
    ended = node.wait_event("exited", worker=0)

    assert (ended["pid"], ended["cause"]) == (told, "exited 0")
    until(lambda: node.pids()["worker:0"] not in ([], [told]), 10, "an heir")
    tasks = [node.ended(id) for id in ids]
    assert {(task["status"], task["attempts"], task["crashes"]) for task in tasks} == {("succeeded", 1, 0)}
    assert len(ledger.runs()) == 2
    assert node.pids()["worker:1"] == [other]
    status = node.status()
    assert (status["totals"]["crashes"], status["workers"][0]["restarts"]) == (0, 1)
    assert node.stop() == 0


def test_the_lease_of_what_runs_on_lasts_to_the_end_of_the_drain(
    start_node: StartNode, ledger: Ledger
) -> None:
    leaving = start_node(workers=1, lease="3s", drain_timeout="30s")
    id = leaving.submit("sleep", {"seconds": 10.0}, max_attempts=1)
    until(lambda: ledger.starts(id), 10, "a start")
    heir = start_node(workers=1, lease="3s")

    assert leaving.stop() == 0

    assert [run.outcome for run in ledger.runs(id)] == ["returned"]
    assert (heir.task(id)["status"], heir.metrics()["released_total"]) == ("succeeded", 0)
    assert not heir.events("lease_expired")


@pytest.mark.parametrize("is_drain_over", [True, False], ids=["after the drain", "in the middle of it"])
def test_a_platform_that_loses_patience_loses_no_task(
    start_node: StartNode, observer: Node, ledger: Ledger, is_drain_over: bool
) -> None:
    node = start_node(workers=1, lease="2s", drain_timeout="1s" if is_drain_over else "30s")
    id = node.submit("sleep", {"seconds": 60}, max_attempts=1)
    until(lambda: ledger.starts(id), 10, "a start")
    others = node.submit_many("return", [{}] * 5)

    with looked_at(observer, id) as answers:
        node.send(signal.SIGTERM)
        time.sleep(2.0 + SLACK if is_drain_over else 0.5)
        if is_drain_over:
            # It had two seconds: the drain's, and one.
            assert node.exit_code == 0
            assert observer.task(id)["status"] == "pending"
        else:
            node.kill("all")
        until(lambda: observer.task(id)["status"] == "pending", 10, "a task that is pending again")
        heir = start_node(workers=1)
        until(lambda: len(ledger.starts(id)) == 2, 10, "a second run")

    assert set(answers) == {200}
    task = heir.task(id)
    assert (task["status"], task["attempts"], task["crashes"]) == ("processing", 1, 0)
    if is_drain_over:
        # It went back to the head of its queue.
        assert [run.id for run in ledger.runs()] == [id, id]
        (told,) = node.events("handed_back", id=id)
        assert (told["outcome"], told["has_crashed"]) == ("released", False)
    assert heir.stop(signal.SIGQUIT) == 0
    assert {observer.task(other)["status"] for other in others} <= {"pending", "succeeded"}


@pytest.mark.parametrize("type", ["stubborn", "hold_gil"])
def test_a_handler_that_does_not_end_is_ended_and_its_task_is_back_at_once(
    start_node: StartNode, state: State, ledger: Ledger, type: str
) -> None:
    node = start_node(workers=1, drain_timeout="1s")
    id = node.submit(type, {"seconds": 60}, max_attempts=1)
    until(lambda: ledger.starts(id), 10, "a start")

    assert seconds_to_end(node, signal.SIGTERM) < 1 + 1 + SLACK

    # Nobody has to wait for a lease of half a minute, and nobody is charged.
    assert_given_back(state, id)
    assert node.exit_code == 0
    assert node.leftovers() == []
    assert len(node.events("handed_back", id=id)) == 1


@pytest.mark.parametrize(
    ("type", "number"), [("stubborn", signal.SIGTERM), ("hold_gil", signal.SIGINT)], ids=["TERM", "INT"]
)
def test_a_second_signal_leaves_no_more_time_to_anybody(
    start_node: StartNode, state: State, ledger: Ledger, type: str, number: signal.Signals
) -> None:
    node = start_node(workers=1, drain_timeout="30s")
    id = node.submit(type, {"seconds": 60}, max_attempts=1)
    until(lambda: ledger.starts(id), 10, "a start")

    node.send(number)
    node.wait_event("drain_began")
    assert seconds_to_end(node, number) < 1 + SLACK

    assert node.exit_code == 0
    assert node.leftovers() == []
    assert_given_back(state, id)


def test_handlers_that_block_every_signal_escape_no_drain(start_embedded: StartNode, tmp_path: Path) -> None:
    target = tmp_path / "blocks.py"
    target.write_text(
        "import signal, time\n"
        "from prefork_q import App\n"
        "app = App()\n"
        "@app.on_worker_start\n"
        "def ignore() -> None:\n"
        "    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:\n"
        "        try:\n"
        "            signal.signal(number, signal.SIG_IGN)\n"
        "        except OSError:\n"
        "            pass\n"
        "@app.task('block')\n"
        "def block() -> None:\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "    while True:\n"
        "        try:\n"
        "            time.sleep(60)\n"
        "        except BaseException:\n"
        "            pass\n"
    )
    node = start_embedded(workers=1, target=f"{target}:app", drain_timeout="1s")
    id = node.submit("block", max_attempts=1)
    until(lambda: node.task(id)["status"] == "processing", 10, "a start")

    assert seconds_to_end(node, signal.SIGTERM) < 1 + 1 + SLACK

    assert node.exit_code == 0
    assert node.leftovers() == []
    assert [event["id"] for event in node.events("handed_back")] == [id]


@pytest.mark.parametrize("is_orphaned", [False, True], ids=["awaited", "left alone"])
def test_what_a_handler_has_started_outlives_the_order_and_not_the_stop(
    start_embedded: StartNode, ledger: Ledger, is_orphaned: bool
) -> None:
    node = start_embedded(workers=1, drain_timeout="1.5s")
    started = node.submit("subprocess", {"seconds": 60, "is_orphaned": is_orphaned})
    running = node.submit("sleep", {"seconds": 60}) if is_orphaned else started
    until(lambda: ledger.starts(running), 10, "a start")
    (child,) = until(lambda: [p for p in node.processes() if "time.sleep" in " ".join(p.cmdline())], 10)

    node.send(signal.SIGTERM)
    node.wait_event("drain_began")
    time.sleep(0.5)
    assert child.is_running()

    assert node.wait(10) == 0
    assert not child.is_running()
    assert node.leftovers() == []


def test_a_stop_without_redis_is_bounded_and_names_what_stays_leased(
    start_node: StartNode, own_server: Server, ledger: Ledger
) -> None:
    with Proxy(own_server.url) as proxy:
        node = start_node(url=proxy.url, workers=2, drain_timeout="1.5s")
        ids = node.submit_many("sleep", [{"seconds": 0.5}, {"seconds": 60}])
        until(lambda: len(ledger.running()) == 2, 10, "work")

        node.send(signal.SIGTERM)
        proxy.swallow()
        sent = time.monotonic()
        code = node.wait(20)

        assert time.monotonic() - sent < 1.5 + 1 + SLACK
    assert code == 1
    assert node.leftovers() == []
    (told,) = node.events("tasks_left")
    assert sorted(told["ids"]) == sorted(ids)


def test_an_idle_node_ends_soon_although_its_workers_wait_for_tasks(start_embedded: StartNode) -> None:
    node = start_embedded(workers=4)
    # All sleep in a call that lasts five seconds.
    time.sleep(0.5)

    assert seconds_to_end(node, signal.SIGTERM) < 1 + SLACK

    assert node.exit_code == 0


@pytest.mark.parametrize("is_busy", [True, False], ids=["busy", "idle"])
def test_after_the_masters_death_all_end_and_the_next_node_has_its_own_alone(
    start_embedded: StartNode, ledger: Ledger, is_busy: bool
) -> None:
    node = start_embedded(workers=3, drain_timeout="2s", lease="2s")
    ids = node.submit_many("sleep", [{"seconds": 0.3}] * 30) if is_busy else []
    until(lambda: len(ledger.running()) == (3 if is_busy else 0), 10, "work")

    node.kill("master")
    killed_at = time.time()

    until(lambda: node.leftovers() == [], 2 + 2 * SLACK, "an end of all children")
    assert [run for run in ledger.runs() if run.started_at > killed_at + 1] == []
    node.start()
    assert len(node.pids()["worker"]) == 3
    assert len([p for p in node.processes() if "prefork-q: worker" in " ".join(p.cmdline())]) == 3
    until(all_ended(node, len(ids)), 30, "the end of all tasks")
    assert ledger.overlaps() == []


def test_children_ignore_what_is_meant_for_their_master(start_node: StartNode, ledger: Ledger) -> None:
    node = start_node(workers=1)
    id = node.submit("sleep", {"seconds": 2}, max_attempts=1)
    until(lambda: ledger.starts(id), 10, "a start")
    before = {role: pids for role, pids in node.pids().items() if role not in ("master", "store")}

    for number in (*NODE_SIGNALS, signal.SIGCONT):
        for pid in (pid for pids in before.values() for pid in pids):
            os.kill(pid, number)

    task = node.ended(id)
    assert (task["status"], task["attempts"], task["crashes"]) == ("succeeded", 1, 0)
    assert {role: node.pids()[role] for role in before} == before
    assert node.events("exited") == []


def test_an_attempt_that_outlasts_the_drain_has_one_line(
    start_node: StartNode, observer: Node, ledger: Ledger
) -> None:
    node = start_node(workers=1, threads=2, drain_timeout="1s")
    id = node.submit("sleep", {"seconds": 30}, max_attempts=1)
    until(lambda: ledger.starts(id), 10, "a start")

    assert node.stop() == 0

    assert observer.task(id)["status"] == "pending"
    (line,) = [entry for entry in node.events(id=id) if "outcome" in entry]
    assert (line["outcome"], line["attempt"], line["worker"]) == ("released", 1, 0)
    assert line["duration_ms"] > 500
