"""A worker and its tasks: each is run once, and what its handler does becomes the outcome."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest

from prefork_q.states import Status
from tests.support.ledger import Ledger
from tests.support.state import State
from tests.support.tasks import Tasks
from tests.support.until import until
from tests.support.worker import Worker

pytestmark = pytest.mark.either_server

StartWorker = Callable[..., Worker]


def test_several_workers_run_each_task_once(
    start_worker: StartWorker, tasks: Tasks, ledger: Ledger, state: State
) -> None:
    ids = tasks.submit("return", {"value": 1}, n=200)

    workers = [start_worker(threads=threads) for threads in (1, 4)]
    tasks.wait(*ids)

    assert tasks.statuses(ids) == {Status.SUCCEEDED}
    assert ledger.times_run() == dict.fromkeys(ids, 1)
    until(lambda: sum(len(worker.outcomes()) for worker in workers) == len(ids))
    logged = Counter(line["id"] for worker in workers for line in worker.said("finished"))
    assert logged == dict.fromkeys(ids, 1)


def test_a_result_is_stored_and_an_attempt_is_a_line_in_the_log(
    start_worker: StartWorker, tasks: Tasks
) -> None:
    worker = start_worker()

    id = tasks.submit_one("return", {"value": {"a": [1, None, "é"]}})
    tasks.wait(id)

    assert tasks.get(id).result == {"a": [1, None, "é"]}
    (line,) = until(lambda: worker.said("finished"))
    assert {name: line[name] for name in ("id", "type", "queue", "attempt", "outcome", "worker", "pid")} == {
        "id": id, "type": "return", "queue": "default", "attempt": 1, "outcome": "succeeded", "worker": 0,
        "pid": worker.pid,
    }  # fmt: skip
    assert 0 <= line["duration_ms"] < 5_000
    assert worker.counters()["completed"] == 1
    assert worker.type_counts("return") == [1, 0, 0, 0]


def test_a_failing_task_is_retried_with_growing_delays_and_then_dead(
    start_worker: StartWorker, tasks: Tasks, state: State, ledger: Ledger
) -> None:
    worker = start_worker()
    before = state.now_ms()
    ids = tasks.submit("raise_slowly", {"message": "no good"}, n=8, max_attempts=4)

    rounds = []
    for _ in range(3):
        tasks.wait(*ids, status="delayed")
        after = state.now_ms()
        rounds.append((before, after, [int(state.task(id)["run_at"]) for id in ids]))
        before = state.now_ms()
        tasks.make_due(*ids)
    tasks.wait(*ids, status="dead")

    for seconds, (before, after, found) in zip((0.4, 0.8, 1.6), rounds, strict=True):
        assert all(before + 1000 * seconds <= run_at <= after + 1200 * seconds for run_at in found)
        assert len(set(found)) > 1, "without jitter those that fail together come back together"
    error = tasks.get(ids[0]).error
    assert error is not None
    assert (error["type"], error["message"]) == ("RuntimeError", "no good")
    assert "raise_slowly" in error["traceback"]
    assert ledger.times_run() == dict.fromkeys(ids, 4)
    until(lambda: len(worker.outcomes()) == 32)
    assert worker.outcomes(ids[0]) == ["retrying", "retrying", "retrying", "dead"]
    counters = worker.counters()
    assert (counters["failed"], counters["retried"], counters["dead"]) == (32, 24, 8)


def test_a_flaky_task_succeeds_at_last(start_worker: StartWorker, tasks: Tasks) -> None:
    start_worker()

    id = tasks.submit_one("flaky", {"failures": 2, "value": "done"}, max_attempts=5)
    for _ in range(2):
        tasks.wait(id, status="delayed")
        tasks.make_due(id)
    tasks.wait(id)

    assert (tasks.get(id).status, tasks.get(id).attempts) == (Status.SUCCEEDED, 3)


def test_a_handler_may_ask_for_a_later_time(start_worker: StartWorker, tasks: Tasks, state: State) -> None:
    start_worker()

    id = tasks.submit_one("retry_after", {"seconds": 40})
    tasks.wait(id, status="delayed")

    assert 39 < state.due_in(id) <= 40
    tasks.make_due(id)
    tasks.wait(id)
    assert tasks.get(id).result == 2


def test_a_handler_asks_in_vain_in_its_last_attempt(start_worker: StartWorker, tasks: Tasks) -> None:
    start_worker()

    id = tasks.submit_one("retry_after", {"seconds": 40}, max_attempts=1)
    tasks.wait(id)

    assert tasks.status(id) is Status.DEAD


@pytest.mark.parametrize(
    ("type", "payload", "error"),
    [
        ("reject", {"reason": "never"}, "Reject"),
        ("raise_never_retried", {}, "ZeroDivisionError"),
        ("return_unjsonable", {}, "prefork_q.worker.result.UnserializableResult"),
        ("return_large", {"size": 2_000}, "prefork_q.worker.result.ResultTooLarge"),
        ("add", {"a": "7"}, "InvalidPayload"),
        ("add", {"b": 1}, "InvalidPayload"),
    ],
)
def test_what_another_attempt_would_not_mend_is_dead_at_once(
    start_worker: StartWorker, tasks: Tasks, type: str, payload: object, error: str
) -> None:
    worker = start_worker(result_limit=1_000)

    id = tasks.submit_one(type, payload, max_attempts=5)
    tasks.wait(id)

    record = tasks.get(id)
    assert (record.status, record.attempts) == (Status.DEAD, 1)
    assert record.error is not None
    assert record.error["type"] == error
    assert until(lambda: worker.outcomes(id)) == ["dead"]


@pytest.mark.parametrize(
    "kind",
    ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "MemoryError", "RecursionError", "Unprintable"],
)
def test_no_exception_ends_a_processor(start_worker: StartWorker, tasks: Tasks, kind: str) -> None:
    worker = start_worker()

    id = tasks.submit_one("raise", {"error": kind}, max_attempts=1)
    after = tasks.submit_one("return", {"value": 1})
    tasks.wait(id, after)

    assert tasks.status(id) is Status.DEAD
    assert tasks.status(after) is Status.SUCCEEDED
    error = tasks.get(id).error
    assert error is not None
    assert error["type"].endswith(kind)
    assert not worker.has_ended()


def test_a_type_that_is_unknown_here_is_put_off_and_uses_no_attempt(
    start_worker: StartWorker, tasks: Tasks, state: State
) -> None:
    worker = start_worker()

    id = tasks.submit_one("of tomorrow", max_attempts=1)
    tasks.wait(id, status="delayed")

    assert tasks.get(id).attempts == 0
    assert 4 < state.due_in(id) <= 6
    assert until(lambda: worker.outcomes(id)) == ["released"]
    assert worker.counters()["released"] == 1


def test_a_type_that_stays_unknown_is_dead_and_the_log_says_so(
    start_worker: StartWorker, tasks: Tasks, state: State
) -> None:
    worker = start_worker(limits={"unknown_limit": 3_600})

    id = state.seed("pending", type="of yesterday", unknown_since=3_601)
    tasks.broker.remind()
    tasks.wait(id)

    error = tasks.get(id).error
    assert error is not None
    assert error["type"] == "UnknownType"
    assert until(lambda: worker.outcomes(id)) == ["dead"]
    counters = worker.counters()
    assert (counters["released"], counters["dead"], counters["failed"]) == (1, 1, 0)


def test_a_cancelled_task_that_fails_is_cancelled_and_the_log_says_so(
    start_worker: StartWorker, tasks: Tasks
) -> None:
    worker = start_worker()
    id = tasks.submit_one("raise", {"after": 2})
    tasks.wait(id, status="processing")

    assert tasks.broker.cancel(id) == "requested"
    tasks.wait(id)

    assert tasks.status(id) is Status.CANCELLED
    assert until(lambda: worker.outcomes(id)) == ["cancelled"]
    counters = worker.counters()
    assert (counters["cancelled"], counters["failed"], counters["retried"]) == (1, 1, 0)


def test_a_handler_learns_of_its_cancellation(start_worker: StartWorker, tasks: Tasks) -> None:
    worker = start_worker()
    id = tasks.submit_one("watch_cancel", {"seconds": 10})
    (held,) = until(worker.holds)

    worker.keeper_was_asked_to_cancel(held.index, held.token)
    tasks.wait(id)

    assert tasks.get(id).result is True


def test_a_handler_learns_that_its_lease_is_lost(start_worker: StartWorker, tasks: Tasks) -> None:
    worker = start_worker()
    id = tasks.submit_one("watch_lease", {"seconds": 10})
    (held,) = until(worker.holds)

    worker.keeper_found_lost(held.index, held.token)
    tasks.wait(id)

    assert tasks.get(id).result is False


def test_a_lease_is_valid_for_as_long_as_it_was_renewed(start_worker: StartWorker, tasks: Tasks) -> None:
    worker = start_worker(lease=1.0, threads=2)
    renewed, left = tasks.submit("watch_lease", {"seconds": 2}, n=2)
    holds = {held.id: held for held in until(lambda: worker.holds() if len(worker.holds()) == 2 else [])}
    held = holds[renewed]

    def has_ended() -> bool:
        worker.keeper_renewed(held.index, held.token)
        return {Status.PROCESSING} not in (tasks.statuses([left]), tasks.statuses([renewed]))

    until(has_ended)

    assert tasks.get(left).result is False
    assert tasks.get(renewed).result is True


def test_the_context_says_what_is_running(start_worker: StartWorker, tasks: Tasks) -> None:
    worker = start_worker()

    id = tasks.submit_one("context", max_attempts=7, timeout=60.0)
    tasks.wait(id)

    said = tasks.get(id).result
    assert isinstance(said, dict)
    assert (said["id"], said["type"], said["attempt"], said["max_attempts"]) == (id, "context", 1, 7)
    assert said["pid"] == worker.pid
    assert said["token"] > 0
    assert said["lease_valid"] is True


def test_tokens_only_grow(start_worker: StartWorker, tasks: Tasks, ledger: Ledger) -> None:
    start_worker()
    for _ in range(3):
        tasks.wait(tasks.submit_one("return"))

    tokens = [run.token for run in ledger.runs()]
    assert all(first < second for first, second in itertools.pairwise(tokens))


def test_progress_is_written_while_others_keep_the_worker_busy(
    start_worker: StartWorker, tasks: Tasks, state: State
) -> None:
    id = tasks.submit_one("progress", {"steps": 20, "seconds": 2.0})
    tasks.submit("sleep", {"seconds": 0.001}, n=3_000)

    start_worker(threads=2)
    until(lambda: "progress" in state.task(id))

    assert tasks.pending() > 0


def test_strict_order_serves_the_first_queue_first(
    start_worker: StartWorker, tasks: Tasks, ledger: Ledger
) -> None:
    low = tasks.submit("return", n=3, queue="low")
    high = tasks.submit("return", n=3, queue="high")

    start_worker(queues=[("high", None), ("low", None)])
    tasks.wait(*low, *high)

    assert [run.id for run in ledger.runs()] == [*high, *low]
