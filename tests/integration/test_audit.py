"""What is called processing and has no lease gets one again; what is as it should be is left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from prefork_q.broker import Broker, Unleased
from prefork_q.keys import Keys
from tests.support.state import LEASE, State, request

WORKER = "node.0.1"


@pytest.fixture
def state(redis_client: redis.Redis, keys: Keys) -> State:
    state = State(redis_client, keys)
    state.keepers_are_heard_of()
    return state


@pytest.fixture
def broker(redis_client: redis.Redis, keys: Keys) -> Broker:
    return Broker(redis_client, keys)


@pytest.fixture
def lose_lease(redis_client: redis.Redis, keys: Keys) -> Callable[[str], None]:
    return lambda id: redis_client.zrem(keys("processing"), id)


def claim(broker: Broker, state: State, n: int = 1, worker: str = WORKER) -> list[str]:
    for _ in range(n):
        state.seed("pending")
    return [lease.id.decode() for lease in broker.claim(request(worker, room=n)).leases]


def test_a_task_without_a_lease_gets_one_and_is_reaped_after_it(
    broker: Broker, state: State, lose_lease: Callable[[str], None]
) -> None:
    lost, sound = claim(broker, state, 2)
    lose_lease(lost)

    assert broker.audit(lease=LEASE) == (0, [Unleased(lost, "thumbnail", WORKER)])

    assert LEASE - 5 < state.expiry(lost) <= LEASE
    assert broker.audit(lease=LEASE) == (0, [])
    state.age(lost)
    state.keepers_are_heard_of()
    assert [one.id for one in broker.reap(lease=LEASE).expired] == [lost]
    assert (state.status(lost), state.status(sound)) == ("pending", "processing")
    state.assert_sums()


def test_its_holder_goes_on_with_it(
    broker: Broker, state: State, lose_lease: Callable[[str], None]
) -> None:
    (lost,) = claim(broker, state)
    lose_lease(lost)
    broker.audit(lease=LEASE)

    broker.complete(lost, int(state.task(lost)["token"]), b"1")

    assert state.status(lost) == "succeeded"
    state.assert_sums()


def test_what_is_as_it_should_be_is_left_alone(broker: Broker, state: State) -> None:
    done, running = claim(broker, state, 2)
    broker.complete(done, int(state.task(done)["token"]), b"1")
    before = state.snapshot()

    assert broker.audit(lease=LEASE) == (0, [])

    assert state.snapshot() == before
    assert state.status(running) == "processing"


def test_a_worker_that_was_handed_back_is_looked_at_no_more(broker: Broker, state: State) -> None:
    claim(broker, state)
    assert state.ids("claims") == [WORKER]

    broker.hand_back(WORKER, [], lease=LEASE)

    assert state.ids("claims") == []


def test_a_worker_whose_claim_is_forgotten_is_dropped(broker: Broker, state: State) -> None:
    claim(broker, state)
    state.lose(f"claim:{WORKER}")

    assert broker.audit(lease=LEASE) == (0, [])

    assert state.ids("claims") == []


def test_a_large_fleet_is_looked_at_in_parts(
    broker: Broker, state: State, lose_lease: Callable[[str], None]
) -> None:
    ids = [id for n in range(230) for id in claim(broker, state, worker=f"node.{n}.1")]
    for id in ids:
        lose_lease(id)
    for n in range(0, 230, 3):
        state.lose(f"claim:node.{n}.1")

    start, found, calls = 0, set(), 0
    while start or not calls:
        calls += 1
        start, some = broker.audit(lease=LEASE, start=start, limit=60)
        found |= {one.id for one in some}
        assert len(some) <= 61

    assert found == {id for n, id in enumerate(ids) if n % 3}
    assert calls > 4
