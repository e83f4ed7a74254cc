"""retry: an operator gives dead tasks a new life."""

from __future__ import annotations

import pytest

from prefork_q.broker import Broker
from prefork_q.states import Status
from tests.support.state import State, request


def test_a_retried_task_starts_anew(broker: Broker, state: State) -> None:
    waiting = state.seed("pending")
    id = state.seed(
        "dead", token=7, attempts=3, crashes=4, losses=2, idempotency_key="k", is_cancel_requested=True
    )

    assert broker.retry([id], nonce="n") == ["ok"]

    task = state.task(id)
    assert state.pending() == [waiting, id]
    assert state.ids("dead") == []
    assert [task[name] for name in ("status", "attempts", "crashes", "losses", "token")] == [
        "pending", "0", "0", "0", "0",
    ]  # fmt: skip
    assert not {"error", "finished_at", "started_at", "cancel", "progress", "unknown_at"} & task.keys()
    assert state.lifetimes(id, "k") == [None, None]
    assert state.wakes() == 1
    leases = broker.claim(request(room=2)).leases
    assert [(lease.id.decode(), lease.attempt) for lease in leases] == [(waiting, 1), (id, 1)]


@pytest.mark.parametrize("status", ["pending", "delayed", "processing", "succeeded", "cancelled"])
def test_what_is_not_dead_is_left_alone(broker: Broker, state: State, status: str) -> None:
    id = state.seed(status)
    before = state.snapshot()

    assert broker.retry([id, "nobody"], nonce="n") == ["not_dead", "missing"]

    assert state.snapshot() == before


def test_the_same_call_again_answers_the_same_and_changes_nothing(broker: Broker, state: State) -> None:
    ids = [state.seed("dead") for _ in range(2)]
    broker.retry(ids, nonce="n")
    broker.claim(request())
    before = state.snapshot()

    assert broker.retry(ids, nonce="n") == ["ok", "ok"]

    assert state.snapshot() == before


def test_another_request_for_the_same_task_is_told_that_it_is_not_dead(broker: Broker, state: State) -> None:
    id = state.seed("dead")
    broker.retry([id], nonce="n")

    assert broker.retry([id], nonce="m") == ["not_dead"]


def test_a_task_twice_in_a_call_is_retried_once(broker: Broker, state: State) -> None:
    id = state.seed("dead")

    assert broker.retry([id, id], nonce="n") == ["ok", "ok"]

    assert state.pending() == [id]


def test_a_bad_entry_does_not_harm_the_others(broker: Broker, state: State) -> None:
    gone, good = state.seed("dead"), state.seed("dead", queue="low")
    state.lose(f"task:{gone}")

    assert broker.retry([gone, good], nonce="n") == ["missing", "ok"]

    assert state.status(good) is Status.PENDING
    broker.delete([gone])


def test_more_than_a_call_takes_are_retried(broker: Broker, state: State) -> None:
    ids = [state.seed("dead") for _ in range(1_100)]

    assert broker.retry(ids, nonce="n") == ["ok"] * 1_100

    assert state.pending() == ids


def test_a_retry_to_a_paused_queue_wakes_nobody(broker: Broker, state: State) -> None:
    id = state.seed("dead")
    broker.pause("default")

    broker.retry([id], nonce="n")

    assert (state.pending(), state.wakes()) == ([id], 0)


def test_the_same_call_again_gives_no_second_life_to_what_has_died_once_more(
    broker: Broker, state: State
) -> None:
    id = state.seed("dead")
    broker.retry([id], nonce="n")
    (lease,) = broker.claim(request()).leases
    broker.fail(id, lease.token, b"{}", delay=None)

    assert broker.retry([id], nonce="n") == ["ok"]

    assert state.status(id) is Status.DEAD
    assert broker.retry([id], nonce="m") == ["ok"]
    assert state.status(id) is Status.PENDING
