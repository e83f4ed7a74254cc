"""Leases that run out under a worker: its word counts no more, and nothing is started on an old lease."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from prefork_q.broker import Broker, HandBack
from prefork_q.states import Status
from tests.support.ledger import Ledger
from tests.support.state import State, request
from tests.support.tasks import Tasks
from tests.support.until import until
from tests.support.worker import Worker

StartWorker = Callable[..., Worker]
LEASE = 1.0


def reap(tasks: Tasks, state: State, *ids: str) -> None:
    """Let leases run out, and a keeper put the tasks back."""
    for id in ids:
        state.age(id, 60)
    state.keepers_are_heard_of()
    assert len(tasks.broker.reap(lease=LEASE).expired) == len(ids)


def test_a_commit_on_a_lost_lease_is_refused_and_counted(
    start_worker: StartWorker, tasks: Tasks, state: State
) -> None:
    worker = start_worker(lease=LEASE)
    id = tasks.submit_one("return", {"value": "late"})
    slow = tasks.submit_one("sleep", {"seconds": 3})
    tasks.wait(id)
    tasks.wait(slow, status="processing")
    until(worker.running)
    worker.send_signal(signal.SIGSTOP)
    reap(tasks, state, slow)
    (lease,) = tasks.broker.claim(request("other.0.1")).leases

    worker.send_signal(signal.SIGCONT)

    until(lambda: worker.counters()["stale"] == 1, 10)
    assert until(lambda: worker.said("commit_refused"))[0]["id"] == slow
    tasks.broker.complete(lease.id, lease.token, b'"the other"')
    assert tasks.get(slow).result == "the other"
    until(lambda: worker.counters()["completed"] == 1)
    assert until(lambda: worker.holds() == [])


def test_a_buffered_task_is_not_started_on_a_lease_that_has_run_out(
    start_worker: StartWorker, tasks: Tasks, state: State, ledger: Ledger
) -> None:
    worker = start_worker(lease=LEASE)
    tasks.wait(*tasks.submit("sleep", {"seconds": 0.001}, n=40))
    with tasks.together():
        running = tasks.submit_one("sleep", {"seconds": 1.5})
        buffered = tasks.submit("sleep", {"seconds": 0.001}, n=3)
    until(lambda: len(worker.holds()) == 4 and ledger.times_run()[running] == 1)

    worker.send_signal(signal.SIGSTOP)
    reap(tasks, state, running, *buffered)
    taken = tasks.broker.claim(request("other.0.1", room=4)).leases
    time.sleep(LEASE + 0.2)
    worker.send_signal(signal.SIGCONT)

    until(lambda: worker.counters()["stale"] == 4)
    assert len(taken) == 4
    assert [ledger.times_run()[id] for id in (running, *buffered)] == [1, 0, 0, 0]


def test_the_same_task_may_be_held_under_an_old_and_a_new_lease(
    start_worker: StartWorker, tasks: Tasks, state: State
) -> None:
    worker = start_worker(threads=2, lease=LEASE)
    id = tasks.submit_one("sleep", {"seconds": 3})
    tasks.wait(id, status="processing")
    until(worker.running)

    reap(tasks, state, id)
    until(lambda: len(worker.running()) == 2)
    tasks.wait(id)

    until(lambda: worker.holds() == [])
    counters = worker.counters()
    assert (counters["stale"], counters["completed"]) == (1, 1)
    after = tasks.submit("return", n=20)
    tasks.wait(*after)
    assert tasks.statuses(after) == {Status.SUCCEEDED}


def test_a_worker_that_was_held_for_dead_ends(
    start_worker: StartWorker, tasks: Tasks, broker: Broker
) -> None:
    worker = start_worker(threads=2)
    long = tasks.submit_one("sleep", {"seconds": 30})
    tasks.wait(long, status="processing")

    broker.hand_back(worker.incarnation, [], lease=30)
    tasks.submit("return", n=1)

    assert worker.exit_code() == 0
    assert worker.said("disowned")
    assert tasks.status(long) is Status.PENDING


def test_a_worker_killed_between_the_claim_and_its_slot_loses_nothing(
    start_worker: StartWorker, tasks: Tasks, broker: Broker
) -> None:
    """What the slot does not show, the record of the last claim does."""
    for attempt in range(12):
        worker = start_worker(threads=2)
        ids = tasks.submit("sleep", {"seconds": 0.002}, n=8)
        time.sleep(attempt * 0.0011)
        worker.send_signal(signal.SIGKILL)
        assert worker.exit_code() == -signal.SIGKILL

        entries = [(held.id, held.token) for held in worker.holds()]
        broker.hand_back(worker.incarnation, [HandBack(*entry) for entry in entries], lease=30)

        assert tasks.statuses(ids) <= {Status.SUCCEEDED, Status.PENDING}
        broker.purge("default")


@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_held_is_in_the_slot_and_leaves_it(
    start_worker: StartWorker, tasks: Tasks, threads: int
) -> None:
    worker = start_worker(threads=threads)
    ids = tasks.submit("sleep", {"seconds": 3}, n=threads)
    tasks.wait(*ids, status="processing")

    holds = until(lambda: worker.holds() if len(worker.holds()) == threads else [])

    assert {held.id for held in holds} == set(ids)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert all(now - 10 < held.claimed_at <= now for held in holds)
    tasks.wait(*ids)
    assert until(lambda: worker.holds() == [])


def test_a_small_table_bounds_what_is_held(start_worker: StartWorker, tasks: Tasks, ledger: Ledger) -> None:
    ids = tasks.submit("return", n=300)

    worker = start_worker(threads=2, held=4)
    most = 0
    while any(tasks.status(id) is not Status.SUCCEEDED for id in ids[-20:]):
        most = max(most, len(worker.holds()))

    assert 2 <= most <= 4
    assert ledger.times_run() == dict.fromkeys(ids, 1)
