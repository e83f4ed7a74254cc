"""fail: the handler raised; the task is delayed for its retry, dead, or cancelled if that was asked for."""

from __future__ import annotations

import pytest

from prefork_q.broker import Broker
from prefork_q.errors import Stale, Unavailable
from prefork_q.leases import Settlement
from prefork_q.states import Status
from tests.support.state import State, request

ERROR = b'{"type":"ValueError","message":"no"}'


def test_with_attempts_left_the_task_is_delayed(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7, attempts=1)

    broker.fail(id, 7, ERROR, delay=40)

    assert state.status(id) is Status.DELAYED
    assert state.due_in(id) == pytest.approx(40, abs=2)
    assert (state.task(id)["error"], state.task(id)["attempts"]) == (ERROR.decode(), "1")
    assert (state.total("failed"), state.total("retried"), state.total("dead")) == (1, 1, 0)
    assert state.is_mover_told()


def test_with_none_left_it_is_dead_and_kept(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7, idempotency_key="k")

    broker.fail(id, 7, ERROR, delay=None)

    assert state.status(id) is Status.DEAD
    assert state.ids("dead") == [id]
    assert state.lifetimes(id, "k") == [None, None]
    assert (state.total("failed"), state.total("retried"), state.total("dead")) == (1, 0, 1)


def test_the_word_says_that_it_turned_out_cancelled_each_time(broker: Broker, state: State) -> None:
    failed, cancelled, last = (
        state.seed("processing", token=7, is_cancel_requested=asked) for asked in (False, True, True)
    )
    outcomes = [
        Settlement("fail", failed.encode(), 7, 1, ERROR, 1_000),
        Settlement("fail", cancelled.encode(), 7, 1, ERROR, 1_000),
        Settlement("fail", last.encode(), 7, 1, ERROR),
    ]

    assert [broker.settle(outcomes) for _ in range(2)] == [["ok", "cancelled", "cancelled"]] * 2


def test_a_cancellation_asked_for_makes_it_cancelled(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7, is_cancel_requested=True)

    broker.fail(id, 7, ERROR, delay=40)

    assert state.status(id) is Status.CANCELLED
    assert state.lifetimes(id) == pytest.approx([86_400], abs=5)
    assert (state.total("failed"), state.total("cancelled")) == (1, 1)


def test_the_last_failure_of_one_that_was_to_be_cancelled_is_no_death(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7, is_cancel_requested=True)

    broker.fail(id, 7, ERROR, delay=None)

    assert state.status(id) is Status.CANCELLED
    assert (state.total("failed"), state.total("cancelled"), state.total("dead")) == (1, 1, 0)


@pytest.mark.parametrize("status", ["pending", "delayed", "processing", "succeeded", "dead", "cancelled"])
@pytest.mark.parametrize("delay", [None, 40])
def test_a_stale_fail_changes_nothing(
    broker: Broker, state: State, status: str, delay: float | None
) -> None:
    id = state.seed(status, token=7)
    before = state.snapshot()

    with pytest.raises(Stale):
        broker.fail(id, 6, ERROR, delay=delay)

    assert state.snapshot() == before


@pytest.mark.parametrize("delay", [None, 40])
@pytest.mark.parametrize("is_cancel_requested", [False, True])
def test_the_same_fail_again_is_accepted_and_changes_nothing(
    broker: Broker, state: State, delay: float | None, is_cancel_requested: bool
) -> None:
    id = state.seed("processing", token=7, is_cancel_requested=is_cancel_requested)
    broker.fail(id, 7, ERROR, delay=delay)
    before = state.snapshot()

    broker.fail(id, 7, ERROR, delay=delay)

    assert state.snapshot() == before


def test_the_same_fail_again_is_accepted_when_the_task_is_due_already(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7)
    broker.fail(id, 7, ERROR, delay=0)
    broker.promote()

    broker.fail(id, 7, ERROR, delay=0)

    assert state.status(id) is Status.PENDING
    assert state.total("failed") == 1


def test_a_fail_after_the_complete_of_the_same_lease_is_stale(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7)
    broker.complete(id, 7, b"1")

    with pytest.raises(Stale):
        broker.fail(id, 7, ERROR, delay=5)

    assert state.status(id) is Status.SUCCEEDED


def test_one_bad_entry_of_a_batch_is_refused_alone(broker: Broker, state: State) -> None:
    retried, dead, stale = (state.seed("processing", token=7) for _ in range(3))

    words = broker.settle([
        Settlement("fail", retried.encode(), 7, 5, ERROR, 100),
        Settlement("fail", stale.encode(), 8, 5, ERROR, 100),
        Settlement("fail", dead.encode(), 7, 5, ERROR, ""),
    ])  # fmt: skip

    assert words == ["ok", "stale", "ok"]
    assert [state.status(id) for id in (retried, stale, dead)] == [
        Status.DELAYED, Status.PROCESSING, Status.DEAD,
    ]  # fmt: skip


def test_who_runs_it_knows_its_type_so_the_hour_of_the_unknown_begins_anew(
    broker: Broker, state: State
) -> None:
    id = state.seed("processing", token=7, unknown_since=3_700)

    broker.fail(id, 7, ERROR, delay=0)
    broker.promote()
    (lease,) = broker.claim(request()).leases
    broker.release(id, lease.token, delay=5, error=ERROR)

    assert state.status(id) is Status.DELAYED


@pytest.mark.parametrize("name", ["delayed", "dead", "recent"])
def test_nothing_is_half_done_if_something_else_stands_where_it_would_be_noted(
    broker: Broker, state: State, name: str
) -> None:
    retried, dead, done = (state.seed("processing", token=7) for _ in range(3))
    state.put_in_place_of(name)
    before = state.snapshot(without=[name])
    outcomes = [
        Settlement("fail", retried.encode(), 7, 5, ERROR, 100),
        Settlement("fail", dead.encode(), 7, 5, ERROR, ""),
        Settlement("complete", done.encode(), 7, 5, b"1"),
    ]

    with pytest.raises(Unavailable):
        broker.settle(outcomes)

    assert state.snapshot(without=[name]) == before
    state.lose(name)
    assert broker.settle(outcomes) == ["ok"] * 3
    assert [state.status(id) for id in (retried, dead, done)] == [
        Status.DELAYED, Status.DEAD, Status.SUCCEEDED,
    ]  # fmt: skip
