"""Where a payload lies: short ones in the task's hash, in pieces that keep it compact, long ones apart."""

from __future__ import annotations

import pytest
import redis

from prefork_q.broker import Broker
from prefork_q.ids import new_id
from prefork_q.inspector import Inspector
from prefork_q.states import Status
from prefork_q.task import Submission
from tests.support.state import State, request

SIZES = [2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 448, 511, 512, 513, 5_000]


def payload(size: int) -> bytes:
    """JSON of so many bytes, in which no two pieces are alike."""
    return (b'"' + b"".join(b"%d," % n for n in range(size)))[: size - 1] + b'"'


@pytest.mark.parametrize("size", SIZES)
def test_a_payload_of_any_size_comes_out_byte_for_byte(
    broker: Broker, state: State, redis_client: redis.Redis, size: int
) -> None:
    id, body = new_id(), payload(size)
    broker.submit([Submission(id, "thumbnail", body)])

    shown = Inspector(redis_client, state.keys).get(id)
    (lease,) = broker.claim(request(seq=10**9)).leases
    (again,) = broker.claim(request(seq=10**9)).leases

    assert shown is not None
    assert (f'"{shown.payload}"'.encode(), lease.body, again.body) == (body, body, body)
    assert state.is_body_apart(id) is (size > 512)
    assert redis_client.object("encoding", state.keys.task(id)) == b"listpack"
    state.assert_sums()


@pytest.mark.parametrize("size", SIZES)
def test_all_of_it_goes_when_the_task_is_cancelled(broker: Broker, state: State, size: int) -> None:
    id = new_id()
    broker.submit([Submission(id, "thumbnail", payload(size))])

    assert broker.cancel(id) == "cancelled"

    assert state.body(id) is None
    assert state.status(id) is Status.CANCELLED


@pytest.mark.parametrize("size", [100, 600])
def test_all_of_it_goes_when_the_task_is_deleted(broker: Broker, state: State, size: int) -> None:
    id = state.seed("dead", body=payload(size))

    assert broker.delete([id]) == ["ok"]

    assert state.body(id) is None
    state.assert_sums()


def test_tasks_of_many_kinds_are_stored_in_one_call(broker: Broker, state: State) -> None:
    ids = [new_id() for _ in range(8)]
    kinds = [
        Submission(ids[0], "a", b"0"),
        Submission(ids[1], "a", b"1"),
        Submission(ids[2], "a", b"2", delay=60.0),
        Submission(ids[3], "b", b"3", queue="other", max_attempts=7),
        Submission(ids[4], "b", b"4", queue="other", max_attempts=7, idempotency_key="k", fingerprint="f"),
        Submission(ids[5], "b", b"5", queue="other", max_attempts=7, idempotency_key="l", fingerprint="f"),
        Submission(ids[6], "a", b"6", timeout=5.0),
        Submission(ids[7], "a", b"7"),
    ]

    answers = broker.submit(kinds)
    once_more = broker.submit(kinds)

    assert [one.id for one in answers] == [one.id for one in once_more] == ids
    assert [state.body(id) for id in ids] == [b"%d" % n for n in range(8)]
    assert [state.task(id)["type"] for id in ids] == list("aaabbbaa")
    assert [state.task(id)["max_attempts"] for id in ids] == list("33377733")
    assert [state.status(id) for id in ids] == [Status.PENDING] * 2 + [Status.DELAYED] + [Status.PENDING] * 5
    assert state.task(ids[6])["timeout_ms"] == "5000"
    assert state.pending() == [ids[0], ids[1], ids[6], ids[7]]
    assert state.pending("other") == ids[3:6]
    state.assert_sums()
