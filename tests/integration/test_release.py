"""release: a task is given back without an outcome, and its attempt with it."""

from __future__ import annotations

import pytest
import redis

from prefork_q.broker import Broker
from prefork_q.errors import Stale
from prefork_q.inspector import Inspector
from prefork_q.leases import Settlement
from prefork_q.states import Status
from tests.support.state import State, request

UNKNOWN = b'{"type":"UnknownType","message":"no worker knows it"}'


def test_a_released_task_is_the_next_again_and_its_attempt_does_not_count(
    broker: Broker, state: State
) -> None:
    others = [state.seed("pending") for _ in range(2)]
    id = state.seed("processing", token=7, attempts=2)

    broker.release(id, 7)

    assert state.pending() == [id, *others]
    assert (state.status(id), state.task(id)["attempts"]) == (Status.PENDING, "1")
    assert state.wakes() == 1
    assert state.total("released") == 1


def test_what_is_released_together_keeps_its_order(broker: Broker, state: State) -> None:
    ids = [state.seed("pending") for _ in range(5)]
    leases = broker.claim(request(room=4)).leases

    broker.settle([Settlement("release", lease.id, lease.token) for lease in leases])

    assert state.pending() == ids


def test_a_release_to_a_paused_queue_wakes_nobody(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7)
    broker.pause("default")

    broker.release(id, 7)

    assert (state.pending(), state.wakes()) == ([id], 0)


def test_a_task_of_an_unknown_type_is_delayed_uncharged(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7)

    broker.release(id, 7, delay=5, error=UNKNOWN)

    assert (state.status(id), state.task(id)["attempts"]) == (Status.DELAYED, "0")
    assert state.due_in(id) == pytest.approx(5, abs=2)
    assert state.total("retried") == 0


def test_the_word_says_what_else_has_become_of_it_each_time(broker: Broker, state: State) -> None:
    back = state.seed("processing", token=7)
    cancelled = state.seed("processing", token=7, is_cancel_requested=True)
    put_off, unknown = (state.seed("processing", token=7, unknown_since=since) for since in (3_500, 3_700))
    outcomes = [
        Settlement("release", back.encode(), 7),
        Settlement("release", cancelled.encode(), 7),
        Settlement("release", put_off.encode(), 7, 0, UNKNOWN, 5_000),
        Settlement("release", unknown.encode(), 7, 0, UNKNOWN, 5_000),
    ]

    assert [broker.settle(outcomes) for _ in range(2)] == [["ok", "cancelled", "ok", "dead"]] * 2


def test_after_an_hour_of_that_it_is_dead(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7, unknown_since=3_700)

    broker.release(id, 7, delay=5, error=UNKNOWN)

    assert (state.status(id), state.task(id)["error"]) == (Status.DEAD, UNKNOWN.decode())


def test_one_that_is_put_off_is_of_no_unknown_type(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7, attempts=2, unknown_since=3_700)

    broker.release(id, 7, delay=5)

    assert (state.status(id), state.task(id)["attempts"]) == (Status.DELAYED, "1")
    assert "error" not in state.task(id)


def test_the_hour_begins_with_the_first_release(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7, unknown_since=3_000)
    since = state.task(id)["unknown_at"]

    broker.release(id, 7, delay=5, error=UNKNOWN)

    assert state.task(id)["unknown_at"] == since


def test_what_it_waited_for_an_offer_counts_for_ten_minutes_at_most(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7, unknown_since=7_200)
    state.spoil(id, "run_at", str(state.now_ms() - 7_100_000))

    broker.release(id, 7, delay=5, error=UNKNOWN)

    assert state.status(id) is Status.DELAYED
    unknown_for = state.now_ms() - int(state.task(id)["unknown_at"])
    assert unknown_for == pytest.approx(700_000, abs=5_000)


@pytest.mark.parametrize("delay", [None, 5])
def test_a_cancellation_asked_for_makes_it_cancelled(
    broker: Broker, state: State, delay: float | None
) -> None:
    id = state.seed("processing", token=7, is_cancel_requested=True)

    broker.release(id, 7, delay=delay)

    assert state.status(id) is Status.CANCELLED
    assert state.lifetimes(id) == pytest.approx([86_400], abs=5)


@pytest.mark.parametrize("status", ["pending", "delayed", "processing", "succeeded", "dead", "cancelled"])
@pytest.mark.parametrize("delay", [None, 5])
def test_a_stale_release_changes_nothing(
    broker: Broker, state: State, status: str, delay: float | None
) -> None:
    id = state.seed(status, token=7)
    before = state.snapshot()

    with pytest.raises(Stale):
        broker.release(id, 6, delay=delay)

    assert state.snapshot() == before


@pytest.mark.parametrize("delay", [None, 5])
def test_the_same_release_again_is_accepted_and_changes_nothing(
    broker: Broker, state: State, delay: float | None
) -> None:
    id = state.seed("processing", token=7)
    broker.release(id, 7, delay=delay)
    before = state.snapshot()

    broker.release(id, 7, delay=delay)

    assert state.snapshot() == before


def test_what_another_has_claimed_since_is_not_released_again(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7)
    broker.release(id, 7)
    broker.claim(request("node.0.2"))

    with pytest.raises(Stale):
        broker.release(id, 7)

    assert state.status(id) is Status.PROCESSING


def test_what_is_no_list_is_set_aside_and_the_task_is_pending(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7)
    state.put_in_place_of("pending:default")

    broker.release(id, 7)

    assert state.pending() == [id]


def test_what_was_never_begun_has_waited_since_it_was_submitted(
    broker: Broker, state: State, redis_client: redis.Redis
) -> None:
    id = state.seed("pending")
    created_at = state.now_ms() - 60_000
    redis_client.hset(state.keys(f"task:{id}"), "created_at", str(created_at))
    for _ in range(2):
        (lease,) = broker.claim(request()).leases
        assert lease.wait_ms >= 60_000
        broker.release(id, lease.token)

    (queue,) = Inspector(redis_client, state.keys).counts().queues
    assert (queue.oldest_pending_age or 0) >= 60
