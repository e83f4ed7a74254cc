"""complete: the holder of the lease writes the result, once."""

from __future__ import annotations

import pytest
import redis

from prefork_q.broker import Broker
from prefork_q.errors import Stale
from prefork_q.leases import Settlement
from prefork_q.states import Status
from tests.support.state import State, request


def test_a_completed_task_has_succeeded_with_its_result(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7)

    broker.complete(id, 7, b'{"size":[]}', ran=2.0)

    task = state.task(id)
    assert (state.status(id), task["result"]) == (Status.SUCCEEDED, '{"size":[]}')
    assert int(task["finished_at"]) - int(task["started_at"]) == 2000
    assert state.ids("processing") == []
    assert state.ids("recent") == [id]
    assert state.total("completed") == 1


@pytest.mark.parametrize(("body", "n"), [(b"{}", 2), (b"[%s]" % (b" " * 600), 3)])
def test_what_succeeded_has_one_lifetime(broker: Broker, state: State, body: bytes, n: int) -> None:
    id = state.seed("processing", token=7, idempotency_key="k", body=body)

    broker.complete(id, 7, b"null")

    lifetimes = state.lifetimes(id, "k")
    assert lifetimes == pytest.approx([86_400] * n, abs=5)
    assert max(lifetimes) - min(lifetimes) < 0.1


def test_the_list_of_what_ended_is_bounded(
    broker: Broker, state: State, redis_client: redis.Redis
) -> None:
    redis_client.lpush(state.keys("recent"), *(f"old-{n}" for n in range(10_000)))
    id = state.seed("processing", token=7)

    broker.complete(id, 7, b"null")

    recent = state.ids("recent")
    assert (len(recent), recent[0], recent[-1]) == (10_000, "old-1", id)


@pytest.mark.parametrize("status", ["pending", "delayed", "processing", "succeeded", "dead", "cancelled"])
def test_a_stale_complete_changes_nothing(broker: Broker, state: State, status: str) -> None:
    id = state.seed(status, token=7)
    before = state.snapshot()

    with pytest.raises(Stale):
        broker.complete(id, 6, b"1")

    assert state.snapshot() == before


def test_the_complete_of_an_unknown_task_changes_nothing(broker: Broker, state: State) -> None:
    with pytest.raises(Stale):
        broker.complete("nobody", 6, b"1")

    assert state.snapshot() == {}


def test_the_complete_of_an_unreadable_task_changes_nothing(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7)
    state.put_in_place_of(f"task:{id}")
    before = state.snapshot()

    with pytest.raises(Stale):
        broker.complete(id, 7, b"1")

    assert state.snapshot() == before
    state.lose(f"task:{id}")
    state.age(id)
    state.keepers_are_heard_of()
    broker.reap(lease=30)


def test_the_same_complete_again_is_accepted_and_changes_nothing(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7)
    broker.complete(id, 7, b"1")
    before = state.snapshot()

    broker.complete(id, 7, b"1")

    assert state.snapshot() == before


def test_after_a_fail_of_the_same_lease_a_complete_is_stale(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7)
    broker.fail(id, 7, b"{}", delay=60)

    with pytest.raises(Stale):
        broker.complete(id, 7, b"1")

    assert state.status(id) is Status.DELAYED


def test_who_finishes_after_a_cancellation_was_asked_for_has_succeeded(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7, is_cancel_requested=True)

    broker.complete(id, 7, b"1")

    assert state.status(id) is Status.SUCCEEDED


def test_one_bad_entry_of_a_batch_is_refused_alone(broker: Broker, state: State) -> None:
    good, other = state.seed("processing", token=7), state.seed("processing", token=7)

    words = broker.settle([
        Settlement("complete", good.encode(), 7, 5, b"1"),
        Settlement("complete", other.encode(), 6, 5, b"2"),
        Settlement("complete", b"nobody", 7, 5, b"3"),
    ])  # fmt: skip

    assert words == ["ok", "stale", "stale"]
    assert (state.status(good), state.status(other)) == (Status.SUCCEEDED, Status.PROCESSING)
    assert state.total("completed") == 1


def test_a_task_twice_in_a_batch_is_completed_once(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7)

    words = broker.settle([Settlement("complete", id.encode(), 7, 5, text) for text in (b"1", b"2")])

    assert words == ["ok", "ok"]
    assert state.task(id)["result"] == "1"
    assert state.total("completed") == 1


def test_a_batch_of_more_than_a_call_takes_is_completed_whole(broker: Broker, state: State) -> None:
    ids = [state.seed("processing", token=7) for _ in range(1_100)]

    words = broker.settle([Settlement("complete", id.encode(), 7, 5, b"1") for id in ids])

    assert words == ["ok"] * 1_100
    assert state.total("completed") == 1_100


def test_who_waits_is_told(broker: Broker, state: State, redis_client: redis.Redis) -> None:
    id = state.seed("pending")
    with redis_client.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe(state.keys.ended(id))
        channel.get_message(timeout=5)
        assert broker.watch(id) == "pending"

        (lease,) = broker.claim(request()).leases
        broker.complete(id, lease.token, b"1")

        message = channel.get_message(timeout=5)
    assert message["data"] == b"succeeded"
