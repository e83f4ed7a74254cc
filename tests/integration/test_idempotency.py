"""submit with an idempotency key: one request, one task, however often and by however many it is sent."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from prefork_q.broker import Broker
from prefork_q.connection import connect
from prefork_q.errors import IdempotencyConflict
from prefork_q.ids import new_id
from prefork_q.keys import Keys
from prefork_q.leases import Limits
from prefork_q.states import Status
from prefork_q.task import Submission, Submitted
from tests.support.server import Server
from tests.support.state import State, request


def keyed(key: str = "order-1", fingerprint: str = "print", **options: object) -> Submission:
    given = {"id": new_id(), "type": "thumbnail", "body": b"{}"} | options
    return Submission(**given, idempotency_key=key, fingerprint=fingerprint)


def test_the_same_key_again_answers_the_first_id(broker: Broker, state: State) -> None:
    first = keyed()
    broker.submit([first])
    before = state.snapshot()

    assert broker.submit([keyed()]) == [Submitted(first.id, Status.PENDING, is_replayed=True)]

    assert state.snapshot() == before


def test_the_same_call_again_is_no_replay(broker: Broker, state: State) -> None:
    task = keyed()
    broker.submit([task])

    assert broker.submit([task]) == [Submitted(task.id, Status.PENDING, is_replayed=False)]


def test_the_key_of_another_request_refuses_all(broker: Broker, state: State) -> None:
    broker.submit([keyed()])
    before = state.snapshot()

    with pytest.raises(IdempotencyConflict) as caught:
        broker.submit([keyed("order-2"), keyed(fingerprint="another")])

    assert caught.value.index == 1
    assert state.snapshot() == before


def test_one_key_twice_in_a_call_is_one_task(broker: Broker, state: State) -> None:
    first, second = keyed(delay=60.0), keyed(delay=60.0)

    answers = broker.submit([first, second])

    assert answers == [
        Submitted(first.id, Status.DELAYED),
        Submitted(first.id, Status.DELAYED, is_replayed=True),
    ]
    assert state.ids("delayed") == [first.id]


def test_one_key_for_two_requests_in_a_call_refuses_all(broker: Broker, state: State) -> None:
    with pytest.raises(IdempotencyConflict) as caught:
        broker.submit([keyed("other"), keyed(), keyed(fingerprint="another")])

    assert caught.value.index == 2
    assert state.snapshot() == {}


def test_fifty_at_once_with_one_key_get_one_id(server: Server, keys: Keys, state: State) -> None:
    broker = Broker(connect(server.url), keys)

    with ThreadPoolExecutor(50) as pool:
        answers = [one for [one] in pool.map(lambda _: broker.submit([keyed()]), range(50))]

    assert len({one.id for one in answers}) == 1
    assert [one.is_replayed for one in answers].count(False) == 1
    assert state.pending() == [answers[0].id]


def test_a_key_is_kept_as_long_as_its_task(server: Server, keys: Keys, state: State) -> None:
    broker = Broker(server.client(), keys, Limits(retention=100))
    task = keyed()
    broker.submit([task])
    assert state.lifetimes(task.id, "order-1") == [None, None]

    (lease,) = broker.claim(request()).leases
    broker.complete(lease.id, lease.token, b"null")

    assert state.lifetimes(task.id, "order-1") == pytest.approx([100] * 2, abs=3)
    assert broker.submit([keyed()]) == [Submitted(task.id, Status.SUCCEEDED, is_replayed=True)]


def test_a_key_that_outlived_its_task_is_free(broker: Broker, state: State) -> None:
    old = state.seed("succeeded", idempotency_key="order-1")
    state.lose(f"task:{old}")

    new = keyed(fingerprint="another")

    assert broker.submit([new]) == [Submitted(new.id, Status.PENDING)]
    assert state.lifetimes(new.id, "order-1") == [None, None]


def test_a_key_whose_task_is_gone_is_free(broker: Broker, state: State) -> None:
    id = state.seed("dead", idempotency_key="order-1")
    broker.delete([id])

    new = keyed(fingerprint="another")

    assert broker.submit([new]) == [Submitted(new.id, Status.PENDING)]
