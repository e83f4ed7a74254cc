"""What a worker claims ahead, and what it does not: quick tasks only, and none waits behind a slow one."""

from __future__ import annotations

import time
from collections.abc import Callable

import redis

from prefork_q.states import Status
from prefork_q.worker import suspects
from tests.support.ledger import Ledger
from tests.support.state import State
from tests.support.tasks import Tasks
from tests.support.until import until
from tests.support.worker import Worker

StartWorker = Callable[..., Worker]


def test_slow_types_are_claimed_for_free_threads_only(start_worker: StartWorker, tasks: Tasks) -> None:
    ids = tasks.submit("sleep", {"seconds": 0.2}, n=12)

    worker = start_worker(threads=2)
    most = 0
    while tasks.status(ids[-1]) is not Status.SUCCEEDED:
        most = max(most, len(worker.holds()))

    assert most == 2


def test_quick_types_are_buffered_for_as_long_as_they_start_soon(
    start_worker: StartWorker, tasks: Tasks
) -> None:
    tasks.submit("sleep", {"seconds": 0.01}, n=200)

    worker = start_worker()
    most = 0
    while tasks.pending():
        most = max(most, len(worker.holds()))

    assert 3 < most <= 14


def test_short_tasks_do_not_wait_behind_long_ones(
    start_worker: StartWorker, tasks: Tasks, ledger: Ledger
) -> None:
    """Seven of eight threads are busy for seconds; the free one runs all that is short."""
    workers = [start_worker(threads=4) for _ in range(2)]
    # So that both workers hold the type for quick.
    tasks.wait(*tasks.submit("sleep", {"seconds": 0.001}, n=200))
    long = tasks.submit("sleep", {"seconds": 12.0}, n=7)
    until(lambda: sum(len(worker.running()) for worker in workers) == 7)

    submitted_at = time.time()
    short = tasks.submit("sleep", {"seconds": 0.002}, n=100)
    tasks.wait(*short, timeout=8.0)

    starts = {run.id: run.started_at for run in ledger.runs()}
    assert max(starts[id] for id in short) - submitted_at < 4.0
    assert tasks.statuses(long) == {Status.PROCESSING}


def test_what_waits_behind_a_long_task_is_given_back_soon(
    start_worker: StartWorker, tasks: Tasks, ledger: Ledger
) -> None:
    worker = start_worker()
    tasks.wait(*tasks.submit("sleep", {"seconds": 0.001}, n=100))
    before, began = worker.counters()["released"], time.monotonic()
    # Claimed together, since the type is held for quick: the first one is not.
    with tasks.together():
        first = tasks.submit_one("sleep", {"seconds": 3.0})
        others = tasks.submit("sleep", {"seconds": 0.001}, n=9)

    until(lambda: worker.counters()["released"] == before + 9)

    assert 0.15 < time.monotonic() - began < 1.4
    assert tasks.statuses(others) == {Status.PENDING}
    assert tasks.status(first) is Status.PROCESSING
    # They do not come back as long as it runs.
    released = tasks.total("released")
    tasks.wait(first)
    assert tasks.total("released") == released
    tasks.wait(*others)
    assert ledger.times_run() == dict.fromkeys(ledger.times_run(), 1)


def test_a_slow_answer_is_no_reason_to_give_back(
    start_worker: StartWorker, tasks: Tasks, redis_client: redis.Redis
) -> None:
    """Patience begins when the claim is answered: else a slow Redis would make tasks go to and fro."""
    worker = start_worker()
    tasks.wait(*tasks.submit("sleep", {"seconds": 0.001}, n=100))

    ids = []
    for _ in range(4):
        with tasks.together():
            ids += tasks.submit("sleep", {"seconds": 0.005}, n=15)
        redis_client.client_pause(500)
        tasks.wait(*ids)

    assert worker.counters()["released"] == 0


# -- suspects


def test_a_suspect_runs_alone(start_worker: StartWorker, tasks: Tasks, state: State, ledger: Ledger) -> None:
    suspects = {
        state.seed("pending", type="sleep", body=b'{"seconds":0.1}', crashes=1) for _ in range(3)
    }
    others = tasks.submit("sleep", {"seconds": 0.05}, n=20)
    more = {state.seed("pending", type="sleep", body=b'{"seconds":0.1}', crashes=1) for _ in range(2)}

    start_worker(threads=4)
    tasks.wait(*others, *suspects, *more, timeout=20)

    runs = ledger.runs()
    for suspect in runs:
        if suspect.id in suspects | more:
            for other in runs:
                if other.id != suspect.id:
                    assert other.ended_at is not None
                    assert suspect.ended_at is not None
                    assert other.ended_at <= suspect.started_at or suspect.ended_at <= other.started_at


def test_a_suspect_that_waits_for_a_long_task_is_given_back_for_others(
    start_worker: StartWorker, tasks: Tasks, state: State, ledger: Ledger
) -> None:
    busy = start_worker(threads=2)
    long = tasks.submit_one("sleep", {"seconds": 8})
    tasks.wait(long, status="processing")
    suspect = state.seed("pending", type="return", body=b"{}", crashes=1)
    after = tasks.submit("return", n=5)
    tasks.broker.remind()
    until(lambda: busy.counters()["released"] == 1)

    other = start_worker(threads=2)
    tasks.wait(suspect, *after, timeout=5.0)

    assert tasks.status(long) is Status.PROCESSING
    assert until(lambda: other.outcomes(suspect)) == ["succeeded"]
    assert until(lambda: busy.outcomes(suspect)) == ["released"]
    tasks.wait(long)
    later = tasks.submit("return", n=20)
    tasks.wait(*later)
    assert busy.counters()["released"] == 1


def test_beside_a_task_without_end_a_suspect_is_put_off_and_others_run(
    start_worker: StartWorker, tasks: Tasks, state: State
) -> None:
    worker = start_worker(threads=2)
    long = tasks.submit_one("sleep", {"seconds": 60})
    tasks.wait(long, status="processing")
    suspect = state.seed("pending", type="return", body=b"{}", crashes=1)
    after = tasks.submit("return", n=5)
    tasks.broker.remind()

    tasks.wait(*after, timeout=suspects.SHORTEST + 10)

    assert tasks.statuses(after) == {Status.SUCCEEDED}
    assert tasks.status(long) is Status.PROCESSING
    assert (tasks.status(suspect), tasks.get(suspect).attempts) == (Status.DELAYED, 0)
    (said,) = until(lambda: worker.said("put_off"))
    assert (said["id"], said["seconds"]) == (suspect, suspects.PUT_OFF * suspects.SHORTEST)


def test_a_suspect_runs_at_last_where_long_tasks_follow_each_other(
    start_worker: StartWorker, tasks: Tasks, state: State, ledger: Ledger
) -> None:
    """Given back again and again, it must not starve: nothing is started beside those that run."""
    start_worker(threads=2)
    tasks.submit("sleep", {"seconds": 0.7})
    second = tasks.submit_one("sleep", {"seconds": 1.1})
    until(lambda: ledger.times_run()[second])
    suspect = state.seed("pending", type="return", body=b"{}", crashes=1)
    tasks.submit("sleep", {"seconds": 0.7}, n=30)

    tasks.wait(suspect, timeout=5)

    assert tasks.status(suspect) is Status.SUCCEEDED
