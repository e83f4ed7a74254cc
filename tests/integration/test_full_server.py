"""A server that has reached its maxmemory takes no task in, and all that it has can be finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from prefork_q.broker import Broker, HandBack, Renewal
from prefork_q.errors import Unavailable
from prefork_q.ids import new_id
from prefork_q.keys import Keys
from prefork_q.leases import Settlement
from prefork_q.states import Status
from prefork_q.task import Submission
from tests.support.server import Server
from tests.support.state import LEASE, State, request


@pytest.fixture
def client(new_server: Callable[..., Server]) -> redis.Redis:
    return new_server(is_persistent=False).client()


@pytest.fixture
def broker(client: redis.Redis, keys: Keys) -> Broker:
    return Broker(client, keys)


@pytest.fixture
def state(client: redis.Redis, keys: Keys) -> Iterator[State]:
    state = State(client, keys)
    state.keepers_are_heard_of()
    yield state
    state.assert_sums()


@pytest.fixture
def fill(client: redis.Redis) -> Callable[[], None]:
    def fill() -> None:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)

    return fill


def test_a_submission_is_refused_and_nothing_is_stored(
    broker: Broker, state: State, fill: Callable[[], None]
) -> None:
    fill()
    before = state.snapshot()

    with pytest.raises(Unavailable) as caught:
        broker.submit([Submission(new_id(), "t", b"{}"), Submission(new_id(), "t", b"{}", delay=5.0)])

    assert caught.value.kind == "full"
    assert state.snapshot() == before


def test_a_submission_that_is_known_is_answered(
    broker: Broker, state: State, fill: Callable[[], None]
) -> None:
    task = Submission(new_id(), "t", b"{}")
    broker.submit([task])
    fill()

    assert broker.submit([task])[0].status is Status.PENDING


def test_tasks_are_claimed_and_settled(broker: Broker, state: State, fill: Callable[[], None]) -> None:
    ids = [state.seed("pending") for _ in range(8)]
    fill()

    one, two, three, four, five = broker.claim(request(room=5)).leases
    broker.complete(one.id, one.token, b"1")
    broker.fail(two.id, two.token, b"{}", delay=60)
    broker.fail(three.id, three.token, b"{}", delay=None)
    broker.release(four.id, four.token, delay=5)
    broker.release(five.id, five.token)
    words, claimed = broker.commit([], request(room=2))
    assert [lease.id.decode() for lease in claimed.leases] == [ids[4], ids[5]]
    outcomes = [Settlement("complete", lease.id, lease.token, 1, b"1") for lease in claimed.leases]
    words, claimed = broker.commit(outcomes, request(room=2))

    assert words == ["ok", "ok"]
    assert [lease.id.decode() for lease in claimed.leases] == ids[6:]
    assert [state.status(id) for id in ids] == [
        Status.SUCCEEDED, Status.DELAYED, Status.DEAD, Status.DELAYED, Status.SUCCEEDED, Status.SUCCEEDED,
        Status.PROCESSING, Status.PROCESSING,
    ]  # fmt: skip


def test_a_paced_claim_drops_ghosts_and_what_is_corrupt(
    broker: Broker, state: State, fill: Callable[[], None]
) -> None:
    ghost, gone, bodiless, id = (state.seed("pending") for _ in range(4))
    broker.cancel(ghost)
    state.lose(f"task:{gone}")
    state.lose_body(bodiless)
    fill()

    claimed = broker.claim(request(room=9))

    assert [lease.id.decode() for lease in claimed.leases] == [id]
    assert state.status(bodiless) is Status.DEAD
    broker.delete([bodiless])


def test_the_keepers_chores_are_done(broker: Broker, state: State, fill: Callable[[], None]) -> None:
    running, lost, held = (state.seed("processing", token=7) for _ in range(3))
    due, dead = state.seed("delayed", due=-1), [state.seed("dead") for _ in range(3)]
    state.age(lost)
    fill()

    assert broker.renew([Renewal(running, 7, True)], lease=LEASE) == ["ok"]
    assert state.task(running)["started"] == "7"
    assert [one.id for one in broker.reap(lease=LEASE).expired] == [lost]
    assert broker.promote().moved == 1
    (back,) = broker.hand_back("w", [HandBack(held, 7, "crashed", b"{}")], lease=LEASE)
    assert back.id == held
    assert broker.trim(dead_limit=2, dead_retention=1_000) == 1
    assert broker.register("node", {}) == "1"
    state.take_wake()
    assert broker.remind().queues == 1
    assert state.wakes() == 1
    assert {lost, due, held} == set(state.pending())
    assert len(state.ids("dead")) == len(dead) - 1


def test_the_operators_verbs_work(broker: Broker, state: State, fill: Callable[[], None]) -> None:
    pending, delayed = state.seed("pending"), state.seed("delayed")
    running = state.seed("processing", token=7)
    retried, deleted = state.seed("dead"), state.seed("dead")
    fill()

    assert [broker.cancel(id) for id in (pending, delayed)] == ["cancelled", "cancelled"]
    assert broker.cancel(running) == "requested"
    assert broker.retry([retried], nonce="n") == ["ok"]
    assert broker.delete([deleted]) == ["ok"]
    assert broker.pause("default") == "ok"
    assert broker.resume("default") == "ok"
    assert broker.watch(running) == "processing"
    assert broker.progress([(running, 7, b"{}")]) == ["ok"]
    assert broker.purge("default") == (2, 1)
