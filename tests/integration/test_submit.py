"""submit: new tasks are stored, all of them or none, and once however often they are sent."""

from __future__ import annotations

import pytest

from prefork_q.broker import MAX_TOGETHER, Broker
from prefork_q.errors import Invalid, Unavailable
from prefork_q.ids import new_id
from prefork_q.states import Status
from prefork_q.task import Submission, Submitted
from tests.support.state import State, request


def submission(**options: object) -> Submission:
    return Submission(**({"id": new_id(), "type": "thumbnail", "body": b'{"width":128}'} | options))


def test_a_task_that_is_due_now_is_pending_and_can_be_claimed(broker: Broker, state: State) -> None:
    task = submission(max_attempts=5, timeout=2.5)

    answer = broker.submit([task])

    assert answer == [Submitted(task.id, Status.PENDING)]
    assert state.pending() == [task.id]
    (lease,) = broker.claim(request()).leases
    assert (lease.id.decode(), lease.type, lease.queue) == (task.id, b"thumbnail", b"default")
    assert (lease.body, lease.attempt, lease.max_attempts, lease.timeout_ms) == (task.body, 1, 5, 2500)


def test_the_first_submitted_is_the_first_claimed(broker: Broker, state: State) -> None:
    tasks = [submission() for _ in range(5)]
    broker.submit(tasks[:3])
    broker.submit(tasks[3:])

    leases = broker.claim(request(room=5)).leases

    assert [lease.id.decode() for lease in leases] == [task.id for task in tasks]


@pytest.mark.parametrize("when", ["delay", "run_at"])
def test_a_task_for_later_is_delayed(broker: Broker, state: State, when: str) -> None:
    due = {"delay": 40.0} if when == "delay" else {"run_at": state.now_ms() / 1000 + 40}
    task = submission(**due)

    assert broker.submit([task]) == [Submitted(task.id, Status.DELAYED)]

    assert state.due_in(task.id) == pytest.approx(40, abs=2)
    assert state.ids("delayed") == [task.id]
    assert state.pending() == []
    assert state.is_mover_told()


@pytest.mark.parametrize("due", [{"delay": 0.0}, {"run_at": 1.0}])
def test_a_task_whose_time_has_come_is_pending_at_once(
    broker: Broker, state: State, due: dict[str, float]
) -> None:
    task = submission(**due)

    assert broker.submit([task])[0].status is Status.PENDING

    assert state.pending() == [task.id]


def test_only_an_earlier_due_time_wakes_the_mover(broker: Broker, state: State) -> None:
    broker.submit([submission(delay=60.0)])
    assert state.is_mover_told()

    broker.submit([submission(delay=90.0)])
    assert not state.is_mover_told()

    broker.submit([submission(delay=90.0), submission(delay=30.0)])
    assert state.is_mover_told()


def test_the_same_call_again_stores_nothing_and_answers_the_same(broker: Broker, state: State) -> None:
    tasks = [submission(), submission(delay=60.0), submission(queue="low")]
    first = broker.submit(tasks)
    before = state.snapshot()

    again = broker.submit(tasks)

    assert again == first
    assert state.snapshot() == before


def test_the_same_call_again_answers_how_the_task_is_now(broker: Broker, state: State) -> None:
    task = submission()
    broker.submit([task])
    broker.claim(request())

    assert broker.submit([task]) == [Submitted(task.id, Status.PROCESSING)]


def test_a_repeat_does_not_bring_back_a_cancelled_task(broker: Broker, state: State) -> None:
    task = submission()
    broker.submit([task])
    broker.cancel(task.id)

    assert broker.submit([task]) == [Submitted(task.id, Status.CANCELLED)]


def test_one_id_twice_in_a_call_is_stored_once(broker: Broker, state: State) -> None:
    task = submission()

    answers = broker.submit([task, task])

    assert answers == [Submitted(task.id, Status.PENDING)] * 2
    assert state.pending() == [task.id]


def test_a_known_task_that_is_unreadable_does_not_harm_the_others(broker: Broker, state: State) -> None:
    bad, good = submission(), submission()
    state.put_in_place_of(f"task:{bad.id}")

    broker.submit([good, bad])

    assert state.pending() == [good.id]
    state.lose(f"task:{bad.id}")


def test_each_queue_gets_one_token_and_a_paused_one_none(broker: Broker, state: State) -> None:
    broker.submit([submission(queue="paused")])
    broker.pause("paused")
    state.take_wake("paused")

    broker.submit([submission(), submission(), submission(queue="low"), submission(queue="paused")])

    assert (state.wakes(), state.wakes("low"), state.wakes("paused")) == (1, 1, 0)


def test_a_delayed_task_wakes_no_worker(broker: Broker, state: State) -> None:
    broker.submit([submission(delay=60.0)])

    assert state.wakes() == 0


def test_what_is_no_list_is_set_aside_and_the_task_is_stored(broker: Broker, state: State) -> None:
    state.put_in_place_of("pending:default")
    task = submission()

    broker.submit([task])

    assert state.pending() == [task.id]
    assert "misplaced:default" in state.snapshot()


def test_a_batch_may_be_so_large_and_no_larger(broker: Broker, state: State) -> None:
    answers = broker.submit([submission(delay=60.0 if n % 2 else None) for n in range(MAX_TOGETHER)])

    assert len(answers) == MAX_TOGETHER
    assert len(state.pending()) == len(state.ids("delayed")) == MAX_TOGETHER // 2
    before = state.snapshot()
    with pytest.raises(Invalid, match="at most 1000"):
        broker.submit([submission() for _ in range(MAX_TOGETHER + 1)])
    assert state.snapshot() == before


def test_nothing_at_all_may_be_submitted(broker: Broker, state: State) -> None:
    assert broker.submit([]) == []

    assert state.snapshot() == {}


def test_nothing_is_stored_if_something_else_stands_where_delayed_tasks_go(
    broker: Broker, state: State
) -> None:
    state.put_in_place_of("delayed")
    later = Submission(new_id(), "thumbnail", b"{}", delay=60, idempotency_key="k", fingerprint="f")

    with pytest.raises(Unavailable):
        broker.submit([later])

    assert state.task(later.id) == {}
    broker.submit([Submission(new_id(), "thumbnail", b"{}")])
    state.lose("delayed")
    assert broker.submit([later])[0].status is Status.DELAYED
    assert state.ids("delayed") == [later.id]
