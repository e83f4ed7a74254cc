"""A worker is told to stop at every moment of a claim: nothing is lost, stays leased or runs twice."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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

ROUNDS = 40
WINDOW = 0.008
"""Seconds in which the order comes after the task: a claim takes two round trips of four milliseconds."""

ORDERS: dict[str, Callable[[Worker], None]] = {
    "SIGTERM": lambda worker: worker.send_signal(signal.SIGTERM),
    "the master": lambda worker: worker.drain(10.0),
}


@contextmanager
def submitting(tasks: Tasks, ids: list[str]) -> Iterator[None]:
    """Submit a task a millisecond for the length of the block."""
    is_over = threading.Event()

    def submit() -> None:
        while not is_over.wait(0.001):
            ids.append(tasks.submit_one("return"))

    submitter = threading.Thread(target=submit)
    submitter.start()
    try:
        yield
    finally:
        is_over.set()
        submitter.join()


@pytest.mark.parametrize("order", ORDERS)
def test_a_task_that_comes_with_the_order_to_stop_runs_once(
    start_worker: StartWorker, tasks: Tasks, state: State, ledger: Ledger, server: Server, order: str
) -> None:
    rng = random.Random(7)
    ids: list[str] = []
    given_back = 0
    with Proxy(server.url) as proxy:
        proxy.delay(0.002)
        for _ in range(ROUNDS):
            worker = start_worker(url=proxy.url)
            ids.append(tasks.submit_one("return"))
            time.sleep(rng.uniform(0, WINDOW))
            ORDERS[order](worker)
            assert worker.exit_code() == 0
            # It was either begun and done, or not begun and given back.
            assert state.ids("processing") == []
            assert worker.holds() == []
            given_back += "released" in worker.outcomes()
            ran = ledger.times_run()
            assert all(ran[id] == (tasks.status(id) is Status.SUCCEEDED) for id in ids)

    assert given_back, "no order came between a claim and its start"
    start_worker()
    tasks.wait(*ids, status="succeeded")
    assert ledger.times_run() == dict.fromkeys(ids, 1)
    assert {tasks.get(id).attempts for id in ids} == {1}


def test_nothing_stays_leased_when_workers_stop_under_a_stream_of_tasks(
    start_worker: StartWorker, tasks: Tasks, state: State, ledger: Ledger
) -> None:
    rng = random.Random(11)
    ids: list[str] = []
    with submitting(tasks, ids):
        for _ in range(ROUNDS):
            worker = start_worker(threads=2)
            until(worker.running, every=0.001)
            time.sleep(rng.uniform(0, 0.02))
            worker.send_signal(signal.SIGTERM)
            assert worker.exit_code() == 0
            assert state.ids("processing") == []

    start_worker(threads=4)
    tasks.wait(*ids, status="succeeded", timeout=30)
    assert ledger.times_run() == dict.fromkeys(ids, 1)
