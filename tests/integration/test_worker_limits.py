"""Soft time limits: raised in the handler and nowhere else; the worker is replaced afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from prefork_q.states import Status
from tests.support.ledger import Ledger
from tests.support.tasks import Tasks
from tests.support.until import until
from tests.support.worker import Worker

pytestmark = pytest.mark.either_server

StartWorker = Callable[..., Worker]


def test_a_soft_limit_passes_except_exception_and_uses_an_attempt(
    start_worker: StartWorker, tasks: Tasks, ledger: Ledger
) -> None:
    worker = start_worker()

    id = tasks.submit_one("guarded", {"seconds": 20}, timeout=0.3)
    tasks.wait(id, status="delayed")

    error = tasks.get(id).error
    assert error is not None
    assert error["type"] == "TaskTimeout"
    assert "guarded" in error["traceback"]
    (run,) = ledger.runs(id)
    assert run.ended_at is not None
    assert 0.2 < run.ended_at - run.started_at < 4.0
    assert until(lambda: worker.said("interrupted"))[0]["id"] == id


def test_a_limit_is_noticed_in_time_although_the_loop_was_asleep(
    start_worker: StartWorker, tasks: Tasks, ledger: Ledger
) -> None:
    start_worker(threads=2)
    slow = tasks.submit_one("sleep", {"seconds": 6})
    tasks.wait(slow, status="processing")

    id = tasks.submit_one("spin", {"seconds": 20}, timeout=0.05, max_attempts=1)
    tasks.wait(id)

    (run,) = ledger.runs(id)
    assert run.ended_at is not None
    assert run.ended_at - run.started_at < 3.0


def test_the_last_attempt_that_meets_its_limit_is_dead(start_worker: StartWorker, tasks: Tasks) -> None:
    start_worker()

    id = tasks.submit_one("spin", {"seconds": 20}, timeout=0.1, max_attempts=1)
    tasks.wait(id)

    assert tasks.status(id) is Status.DEAD


def test_a_worker_that_interrupted_a_handler_ends_when_it_is_idle(
    start_worker: StartWorker, tasks: Tasks, ledger: Ledger
) -> None:
    worker = start_worker(threads=2)
    slow = tasks.submit_one("sleep", {"seconds": 1.2})
    id = tasks.submit_one("spin", {"seconds": 20}, timeout=0.2)
    tasks.wait(id, status="delayed")

    later = tasks.submit("return", n=5)

    assert worker.exit_code() == 0
    assert tasks.status(slow) is Status.SUCCEEDED
    assert tasks.statuses(later) == {Status.PENDING}
    assert "Retiring" in worker.messages()


def test_a_handler_that_swallows_its_limit_is_interrupted_once(
    start_worker: StartWorker, tasks: Tasks
) -> None:
    worker = start_worker()

    id = tasks.submit_one("stubborn", {"seconds": 1.5}, timeout=0.2)
    tasks.wait(id)

    assert tasks.get(id).result == 1
    assert len(worker.said("interrupted")) == 1


def test_limits_that_pass_at_about_the_end_of_a_handler_hit_nothing_else(
    start_worker: StartWorker, tasks: Tasks, ledger: Ledger
) -> None:
    """Each attempt either returns or is interrupted; what runs after it in the same thread is left alone."""
    limited, free = [], []
    for _ in range(40):
        limited += tasks.submit("spin", {"seconds": 0.05}, timeout=0.05, max_attempts=1)
        free += tasks.submit("spin", {"seconds": 0.02}, max_attempts=1)

    while tasks.statuses([*limited, *free]) & {Status.PENDING, Status.PROCESSING}:
        # A worker that interrupts retires; the next one goes on.
        worker = start_worker(threads=2)
        until(lambda worker=worker: worker.has_ended() or not tasks.pending(), 30)

    assert tasks.statuses(free) == {Status.SUCCEEDED}
    for id in limited:
        error = tasks.get(id).error
        assert error is None or error["type"] == "TaskTimeout"
    assert ledger.times_run() == dict.fromkeys([*limited, *free], 1)


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_the_scoreboard_shows_the_hard_limit(
    start_worker: StartWorker, tasks: Tasks, timeout: float | None
) -> None:
    worker = start_worker(grace=2.0)
    id = tasks.submit_one("sleep", {"seconds": 1}, timeout=timeout)

    (running,) = until(worker.running)

    assert (running.id, running.type, running.attempt) == (id, "sleep", 1)
    assert running.deadline == (pytest.approx(running.started_at + 32.0) if timeout else 0.0)
    tasks.wait(id)
    until(lambda: worker.running() == [])
