"""The end of a worker: it claims nothing more, finishes what runs, gives back the rest, and is gone."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from prefork_q.states import Status
from tests.support.ledger import Ledger
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.state import State
from tests.support.tasks import Tasks
from tests.support.until import until
from tests.support.worker import Worker

pytestmark = pytest.mark.either_server

StartWorker = Callable[..., Worker]

ORDERS: dict[str, Callable[[Worker], None]] = {
    "the master's order": lambda worker: worker.drain(10.0),
    "a SIGTERM of its own": lambda worker: worker.send_signal(signal.SIGTERM),
    "the master's death": lambda worker: worker.orphan(),
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_drain_finishes_what_runs_and_gives_back_the_rest_at_once(
    start_worker: StartWorker, tasks: Tasks, ledger: Ledger, order: str
) -> None:
    worker = start_worker(threads=2, drain_timeout=10.0)
    # So that the type is known to be quick.
    tasks.wait(*tasks.submit("sleep", {"seconds": 0.001}, n=60))
    with tasks.together():
        running = tasks.submit("sleep", {"seconds": 3.0}, n=2)
        buffered = tasks.submit("sleep", {"seconds": 0.001}, n=20)
    until(lambda: len(worker.running()) == 2 and len(worker.holds()) > 2, what="tasks that are buffered")

    ORDERS[order](worker)
    until(lambda: worker.state() == "draining")
    tasks.wait(*buffered, status="pending", timeout=1.5)
    late = tasks.submit("return", n=3)

    assert worker.exit_code() == 0
    assert tasks.statuses(running) == {Status.SUCCEEDED}
    assert tasks.statuses([*buffered, *late]) == {Status.PENDING}
    assert tasks.total("released") == worker.counters()["released"]
    assert worker.holds() == []
    assert max(ledger.times_run()[id] for id in running) == 1


@pytest.mark.parametrize("order", ORDERS)
def test_an_idle_worker_ends_at_once(start_worker: StartWorker, order: str) -> None:
    worker = start_worker()
    began = time.monotonic()

    ORDERS[order](worker)

    assert worker.exit_code() == 0
    # Else it would be five, of a BLPOP.
    assert time.monotonic() - began < 4.0


def test_a_signal_is_heard_at_once_while_handlers_sleep_and_after_one_that_holds_the_interpreter(
    start_worker: StartWorker, tasks: Tasks
) -> None:
    worker = start_worker(threads=2, drain_timeout=10.0)
    tasks.submit("sleep", {"seconds": 6}, n=2)
    until(lambda: len(worker.running()) == 2)
    began = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    until(lambda: worker.state() == "draining", every=0.002)
    # Within 0.1 s, and what the machine adds; what it must not wait for takes longer.
    assert time.monotonic() - began < 3.0
    assert worker.exit_code() == 0

    worker = start_worker(drain_timeout=10.0)
    id = tasks.submit_one("hold_gil", {"seconds": 1.5})
    tasks.wait(id, status="processing")
    until(worker.running)
    worker.send_signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert tasks.status(id) is Status.SUCCEEDED


def test_at_the_deadline_what_runs_stays_in_the_slot_for_the_keeper(
    start_worker: StartWorker, tasks: Tasks
) -> None:
    worker = start_worker(threads=2)
    short, long = tasks.submit_one("sleep", {"seconds": 1.0}), tasks.submit_one("sleep", {"seconds": 30})
    until(lambda: len(worker.running()) == 2)
    began = time.monotonic()

    worker.drain(3.0)

    assert worker.exit_code() == 0
    assert 2.6 < time.monotonic() - began < 5.0
    assert (tasks.status(short), tasks.status(long)) == (Status.SUCCEEDED, Status.PROCESSING)
    assert [held.id for held in worker.holds()] == [long]
    assert [running.id for running in worker.running()] == [long]
    # Whoever gives it back says what becomes of it.
    assert worker.outcomes(long) == []


def test_a_second_order_can_only_shorten_the_drain(start_worker: StartWorker, tasks: Tasks) -> None:
    worker = start_worker()
    tasks.wait(tasks.submit_one("sleep", {"seconds": 30}), status="processing")
    until(worker.running)
    began = time.monotonic()

    worker.drain(1.0)
    worker.drain(30.0)
    worker.send_signal(signal.SIGTERM)

    assert worker.exit_code() == 0
    assert time.monotonic() - began < 4.0


def test_an_order_to_be_gone_at_once_is_kept(start_worker: StartWorker, tasks: Tasks) -> None:
    worker = start_worker()
    tasks.submit("sleep", {"seconds": 30})
    until(worker.running)
    worker.drain(10.0)
    until(lambda: worker.state() == "draining")
    began = time.monotonic()

    worker.drain(0.0)

    assert worker.exit_code() == 0
    assert time.monotonic() - began < 3.5


def test_a_worker_that_is_told_to_stop_before_it_may_go_touches_nothing(
    start_worker: StartWorker, tasks: Tasks
) -> None:
    id = tasks.submit_one("return")
    worker = start_worker(wait_ready=False, is_welcome=False)

    worker.drain(0.0)

    assert worker.exit_code() == 0
    assert tasks.status(id) is Status.PENDING
    assert worker.lines() == []


def test_what_is_claimed_while_the_order_arrives_is_not_started(
    start_worker: StartWorker, tasks: Tasks, ledger: Ledger
) -> None:
    """Whatever happens first: a task is either done by this worker or pending again when it is gone."""
    for attempt in range(15):
        worker = start_worker(threads=2)
        ids = tasks.submit("return", n=5)
        time.sleep(attempt * 0.0007)
        worker.send_signal(signal.SIGTERM)
        assert worker.exit_code() == 0
        assert tasks.statuses(ids) <= {Status.SUCCEEDED, Status.PENDING}
        assert worker.holds() == []
        ran = ledger.times_run()
        assert all(ran[id] == (tasks.status(id) is Status.SUCCEEDED) for id in ids)
        tasks.broker.purge("default")


def test_a_suspect_that_waits_is_given_back_by_a_drain(
    start_worker: StartWorker, tasks: Tasks, state: State
) -> None:
    worker = start_worker(threads=2)
    running = tasks.submit_one("sleep", {"seconds": 3})
    tasks.wait(running, status="processing")
    suspect = state.seed("pending", type="return", body=b"{}", crashes=1)
    tasks.broker.remind()
    tasks.wait(suspect, status="processing")

    worker.drain(10.0)
    tasks.wait(suspect, status="pending", timeout=2)

    assert worker.exit_code() == 0
    assert tasks.status(running) is Status.SUCCEEDED


# -- Redis away


def test_a_drain_ends_by_its_deadline_while_redis_does_not_answer(
    start_worker: StartWorker, tasks: Tasks, server: Server
) -> None:
    with Proxy(server.url) as proxy:
        worker = start_worker(url=proxy.url)
        id = tasks.submit_one("sleep", {"seconds": 1.0})
        until(worker.running)
        proxy.swallow()
        began = time.monotonic()

        worker.drain(3.0)

        assert worker.exit_code() == 0
        assert 2.5 < time.monotonic() - began < 4.5
    # The keeper gives it back by the slot; the log names it.
    assert [held.id for held in worker.holds()] == [id]
    (line,) = worker.said("left_leased")
    assert line["ids"] == [id]


def test_a_drain_ends_by_its_deadline_while_redis_cannot_be_reached(
    start_worker: StartWorker, tasks: Tasks, server: Server
) -> None:
    with Proxy(server.url) as proxy:
        worker = start_worker(url=proxy.url)
        tasks.submit("sleep", {"seconds": 1.0})
        until(worker.running)
        proxy.cut()
        until(lambda: worker.counters()["redis_connection"] > 2)
        began = time.monotonic()

        worker.drain(1.5)

        assert worker.exit_code() == 0
        assert time.monotonic() - began < 4.5


def test_a_drain_that_redis_comes_back_for_commits(
    start_worker: StartWorker, tasks: Tasks, server: Server
) -> None:
    with Proxy(server.url) as proxy:
        worker = start_worker(url=proxy.url)
        id = tasks.submit_one("sleep", {"seconds": 1.0})
        until(worker.running)
        proxy.cut()
        until(lambda: worker.counters()["redis_connection"] > 2)

        worker.drain(20.0)
        proxy.heal()

        assert worker.exit_code() == 0
    assert tasks.status(id) is Status.SUCCEEDED


def test_an_idle_worker_ends_at_once_while_redis_cannot_be_reached(
    start_worker: StartWorker, server: Server
) -> None:
    with Proxy(server.url) as proxy:
        worker = start_worker(url=proxy.url)
        proxy.cut()
        until(lambda: worker.said("redis_lost"), 15)
        began = time.monotonic()

        worker.drain(20.0)

        assert worker.exit_code() == 0
        assert time.monotonic() - began < 4.0


# -- hooks

HOOKS = """
import os, time
from prefork_q import App
app = App()

def note(text):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(text + "\\n")

@app.on_worker_start
def begin():
    note("started")
    if os.environ.get("START") == "wait":
        time.sleep(2)
    if os.environ.get("START") == "raise":
        raise SystemExit("no database")

@app.on_worker_stop
def end():
    if os.environ.get("STOP") == "hang":
        time.sleep(60)
    if os.environ.get("STOP") == "raise":
        raise RuntimeError("no")
    note("stopped")

@app.task("sleep")
def sleep(seconds: float) -> None:
    time.sleep(seconds)
"""


@pytest.fixture
def hooked(tmp_path: Path) -> tuple[str, Path]:
    """A target with hooks, and the file in which they note that they ran."""
    (tmp_path / "hooked.py").write_text(HOOKS)
    return f"{tmp_path / 'hooked.py'}:app", tmp_path / "notes"


def test_hooks_run_at_the_start_and_at_the_end(start_worker: StartWorker, hooked: tuple[str, Path]) -> None:
    target, notes = hooked
    worker = start_worker(target=target, environ={"NOTES": str(notes)})

    worker.drain(5.0)

    assert worker.exit_code() == 0
    assert notes.read_text().split() == ["started", "stopped"]


def test_an_order_to_stop_that_comes_during_a_start_hook_is_heard_before_the_first_claim(
    start_worker: StartWorker, tasks: Tasks, hooked: tuple[str, Path]
) -> None:
    target, notes = hooked
    id = tasks.submit_one("sleep", {"seconds": 0})
    worker = start_worker(target=target, environ={"NOTES": str(notes), "START": "wait"}, wait_ready=False)
    until(notes.exists)

    worker.send_signal(signal.SIGTERM)

    assert worker.exit_code() == 0
    assert (tasks.get(id).status, tasks.total("released")) == (Status.PENDING, 0)


def test_a_stop_hook_that_hangs_delays_the_end_by_a_second_at_most(
    start_worker: StartWorker, hooked: tuple[str, Path]
) -> None:
    target, notes = hooked
    worker = start_worker(target=target, environ={"NOTES": str(notes), "STOP": "hang"})
    began = time.monotonic()

    worker.drain(20.0)

    assert worker.exit_code() == 0
    assert 0.9 < time.monotonic() - began < 4.0
    assert worker.said("hook_abandoned")


def test_a_stop_hook_has_time_before_the_deadline_when_handlers_run_over(
    start_worker: StartWorker, tasks: Tasks, hooked: tuple[str, Path]
) -> None:
    target, notes = hooked
    worker = start_worker(target=target, environ={"NOTES": str(notes)})
    tasks.submit("sleep", {"seconds": 30})
    until(worker.running)
    began = time.monotonic()

    worker.drain(2.0)

    assert worker.exit_code() == 0
    assert time.monotonic() - began < 4.5
    assert notes.read_text().split() == ["started", "stopped"]


def test_a_stop_hook_that_raises_is_told(start_worker: StartWorker, hooked: tuple[str, Path]) -> None:
    target, notes = hooked
    worker = start_worker(target=target, environ={"NOTES": str(notes), "STOP": "raise"})

    worker.drain(5.0)

    assert worker.exit_code() == 0
    assert worker.said("hook_failed")[0]["error_message"] == "no"


def test_a_start_hook_that_raises_is_told_to_the_master(
    start_worker: StartWorker, tasks: Tasks, hooked: tuple[str, Path]
) -> None:
    target, notes = hooked
    worker = start_worker(target=target, environ={"NOTES": str(notes), "START": "raise"}, wait_ready=False)

    assert worker.exit_code() == 1
    assert worker.failure() == "the hook on_worker_start raised SystemExit: no database"
