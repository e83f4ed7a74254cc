"""promote: the mover takes what is due to its pending list, in batches, and says when the next is due."""

from __future__ import annotations

import pytest
import redis

from prefork_q.broker import Broker, Promoted
from prefork_q.states import Status
from tests.support.state import State


def test_what_is_due_is_pending_in_the_order_of_its_due_times(broker: Broker, state: State) -> None:
    second = state.seed("delayed", due=-1)
    first = state.seed("delayed", due=-2)
    later = state.seed("delayed", due=60)
    waiting = state.seed("pending")

    promoted = broker.promote()

    assert promoted.moved == 2
    assert promoted.next_due == pytest.approx(60, abs=2)
    assert state.pending() == [waiting, first, second]
    assert state.status(first) is state.status(second) is Status.PENDING
    assert state.status(later) is Status.DELAYED
    assert state.wakes() == 1


def test_nothing_due_changes_nothing(broker: Broker, state: State) -> None:
    state.seed("delayed", due=60)
    before = state.snapshot()

    assert broker.promote().moved == 0

    assert state.snapshot() == before


def test_with_nothing_delayed_nothing_is_due(broker: Broker, state: State) -> None:
    assert broker.promote() == Promoted(0, None)

    assert state.snapshot() == {}


def test_the_same_call_again_changes_nothing(broker: Broker, state: State) -> None:
    state.seed("delayed", due=-1)
    broker.promote()
    before = state.snapshot()

    assert broker.promote() == Promoted(0, None)

    assert state.snapshot() == before


def test_two_thousand_due_at_once_are_moved_in_batches(broker: Broker, state: State) -> None:
    ids = [state.seed("delayed", due=-1) for _ in range(2_000)]

    moved = [broker.promote(500) for _ in range(5)]

    assert [one.moved for one in moved] == [500, 500, 500, 500, 0]
    assert [one.next_due for one in moved] == [0, 0, 0, None, None]
    assert set(state.pending()) == set(ids)


def test_each_queue_gets_its_own_and_a_paused_one_no_token(broker: Broker, state: State) -> None:
    high, low = state.seed("delayed", due=-1, queue="high"), state.seed("delayed", due=-1, queue="low")
    broker.pause("low")

    broker.promote()

    assert (state.pending("high"), state.pending("low")) == ([high], [low])
    assert (state.wakes("high"), state.wakes("low")) == (1, 0)


def test_what_has_no_record_is_dropped_and_counted(broker: Broker, state: State) -> None:
    gone, bad, good = (state.seed("delayed", due=-1) for _ in range(3))
    state.lose(f"task:{gone}")
    state.put_in_place_of(f"task:{bad}")

    assert broker.promote().moved == 1

    assert state.pending() == [good]
    assert set(state.ids("corrupt")) == {gone, bad}
    assert state.total("removed") == 2
    state.lose(f"task:{bad}")


def test_a_stray_id_is_dropped(broker: Broker, state: State, redis_client: redis.Redis) -> None:
    id = state.seed("pending")
    redis_client.zadd(state.keys("delayed"), {id: 1})

    assert broker.promote() == Promoted(0, None)

    assert state.pending() == [id]
    assert state.total("strays") == 1


def test_what_is_no_list_is_set_aside_and_nothing_is_lost(broker: Broker, state: State) -> None:
    broken, good = state.seed("delayed", due=-1, queue="broken"), state.seed("delayed", due=-1)
    state.put_in_place_of("pending:broken")

    assert broker.promote().moved == 2

    assert (state.pending("broken"), state.pending()) == ([broken], [good])
