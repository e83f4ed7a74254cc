"""delete, trim, purge: tasks go for good, counted, in bounded batches."""

from __future__ import annotations

import pytest

from prefork_q.broker import Broker
from prefork_q.states import Status
from tests.support.state import State, request

# -- delete


def test_a_deleted_dead_task_is_gone_with_all_that_belongs_to_it(broker: Broker, state: State) -> None:
    id, other = state.seed("dead", idempotency_key="k"), state.seed("dead")

    assert broker.delete([id]) == ["ok"]

    assert state.ids("dead") == [other]
    assert not [name for name in state.snapshot() if id in name or name == "idem:k"]
    assert state.total("removed") == 1


@pytest.mark.parametrize("status", ["pending", "delayed", "processing", "succeeded", "cancelled"])
def test_only_dead_tasks_can_be_deleted(broker: Broker, state: State, status: str) -> None:
    id = state.seed(status)
    before = state.snapshot()

    assert broker.delete([id, "nobody"]) == ["not_dead", "missing"]

    assert state.snapshot() == before


def test_the_same_delete_again_changes_nothing(broker: Broker, state: State) -> None:
    id = state.seed("dead")
    broker.delete([id])
    before = state.snapshot()

    assert broker.delete([id, id]) == ["missing", "missing"]

    assert state.snapshot() == before


def test_what_is_listed_as_dead_without_a_record_can_be_deleted(broker: Broker, state: State) -> None:
    gone, bad = state.seed("dead"), state.seed("dead")
    state.lose(f"task:{gone}")
    state.put_in_place_of(f"task:{bad}")

    assert broker.delete([gone, bad]) == ["missing", "missing"]

    assert state.ids("dead") == []
    assert state.total("removed") == 2


def test_an_idempotency_key_that_another_task_has_by_now_stays(broker: Broker, state: State) -> None:
    old = state.seed("dead", idempotency_key="k")
    new = state.seed("pending", idempotency_key="k")

    broker.delete([old])

    assert state.snapshot()["idem:k"][0].split()[0] == new


# -- trim


def test_the_oldest_dead_beyond_the_limit_go(broker: Broker, state: State) -> None:
    ids = [state.seed("dead", idempotency_key=f"k{n}") for n in range(5)]
    for n, id in enumerate(ids):
        state.age(id, by=100 - n)

    assert broker.trim(dead_limit=3, dead_retention=1_000) == 2

    assert state.ids("dead") == ids[2:]
    assert (state.total("trimmed"), state.total("removed")) == (2, 2)
    assert "idem:k0" not in state.snapshot()


def test_the_dead_beyond_the_age_go(broker: Broker, state: State) -> None:
    old, new = state.seed("dead"), state.seed("dead")
    state.age(old, by=2_000)

    assert broker.trim(dead_limit=100, dead_retention=1_000) == 1

    assert state.ids("dead") == [new]


def test_a_trim_is_bounded_and_again_changes_nothing_when_done(broker: Broker, state: State) -> None:
    for _ in range(25):
        state.seed("dead")

    assert [broker.trim(dead_limit=5, dead_retention=1_000, limit=10) for _ in range(3)] == [10, 10, 0]

    assert len(state.ids("dead")) == 5


def test_a_trimmed_task_without_a_record_is_counted_too(broker: Broker, state: State) -> None:
    gone, bad = state.seed("dead"), state.seed("dead")
    state.lose(f"task:{gone}")
    state.put_in_place_of(f"task:{bad}")

    assert broker.trim(dead_limit=0, dead_retention=1_000) == 2

    assert state.ids("dead") == []


# -- purge


def test_a_purged_queue_is_empty_and_the_others_are_not(broker: Broker, state: State) -> None:
    ids = [state.seed("pending", idempotency_key=f"k{n}") for n in range(5)]
    other = state.seed("pending", queue="low")

    assert broker.purge("default") == (5, 5)

    assert state.pending() == []
    assert state.pending("low") == [other]
    assert [state.status(id) for id in ids] == [None] * 5
    assert state.total("removed") == 5


def test_a_purge_takes_the_newest_first_in_batches(broker: Broker, state: State) -> None:
    ids = [state.seed("pending") for _ in range(5)]

    assert broker.purge("default", limit=2) == (2, 2)
    assert state.pending() == ids[:3]
    assert [broker.purge("default", limit=2) for _ in range(3)] == [(2, 2), (1, 1), (0, 0)]


def test_a_purge_drops_ghosts_and_keeps_their_records(broker: Broker, state: State) -> None:
    ghost, id = state.seed("pending"), state.seed("pending")
    broker.cancel(ghost)

    assert broker.purge("default") == (2, 1)

    assert (state.status(ghost), state.status(id)) == (Status.CANCELLED, None)


def test_a_purge_leaves_running_tasks_alone(broker: Broker, state: State) -> None:
    id = state.seed("pending")
    (lease,) = broker.claim(request()).leases
    state.list_again(id)

    assert broker.purge("default") == (1, 0)

    broker.complete(id, lease.token, b"1")


def test_a_purge_counts_what_has_no_record(broker: Broker, state: State) -> None:
    gone, bad = state.seed("pending"), state.seed("pending")
    state.lose(f"task:{gone}")
    state.put_in_place_of(f"task:{bad}")

    assert broker.purge("default") == (2, 2)

    assert state.total("removed") == 2


def test_a_purge_of_an_unknown_queue_changes_nothing(broker: Broker, state: State) -> None:
    assert broker.purge("nowhere") == (0, 0)

    assert state.snapshot() == {}
