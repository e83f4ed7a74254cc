"""Something else stands where a key belongs, for a while: nothing is half done, lost or counted twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import redis

from prefork_q.broker import Broker, HandBack
from prefork_q.errors import Unavailable
from prefork_q.ids import new_id
from prefork_q.keys import Keys
from prefork_q.leases import Settlement
from prefork_q.task import Submission
from tests.support.state import LEASE, State, request

WORKER = "node.0.1"
ERROR = b'{"type":"ValueError","message":"no"}'

Call = Callable[[], object]


def submit(broker: Broker, state: State) -> Call:
    tasks = [Submission(new_id(), "thumbnail", b"{}", delay=delay) for delay in (60.0, None, 50.0)]
    return lambda: broker.submit(tasks)


def claim(broker: Broker, state: State) -> Call:
    for _ in range(3):
        state.seed("pending")
    wanted = request(WORKER, seq=5, room=2)
    return lambda: broker.claim(wanted)


def complete(broker: Broker, state: State) -> Call:
    state.seed("pending")
    done = Settlement("complete", state.seed("processing", token=7).encode(), 7, 3, b"1")
    return lambda: broker.commit([done], request(WORKER, seq=5))


def fail_and_release(broker: Broker, state: State) -> Call:
    verbs = ("fail", "release", "fail")
    outcomes = [
        Settlement(verb, state.seed("processing", token=7).encode(), 7, 0, ERROR, delay)
        for verb, delay in zip(verbs, (5_000, "", ""), strict=True)
    ]
    return lambda: broker.commit(outcomes, request(WORKER, seq=5, room=0))


def cancel(broker: Broker, state: State) -> Call:
    ids = [state.seed(status) for status in ("pending", "delayed", "processing")]
    return lambda: [broker.cancel(id) for id in ids]


def retry(broker: Broker, state: State) -> Call:
    ids = [state.seed("dead") for _ in range(2)]
    return lambda: broker.retry(ids, nonce="n")


def promote(broker: Broker, state: State) -> Call:
    for _ in range(2):
        state.seed("delayed", due=-1.0)
    return broker.promote


def reap(broker: Broker, state: State) -> Call:
    for is_started in (True, False):
        state.seed("processing", lease=-1.0, is_started=is_started)
    state.keepers_are_heard_of()
    return lambda: broker.reap(lease=LEASE)


def hand_back(broker: Broker, state: State) -> Call:
    leases = [state.seed("processing", token=7) for _ in range(2)]
    entries = [HandBack(leases[0], 7, "crashed", ERROR), HandBack(leases[1], 7)]
    return lambda: broker.hand_back(WORKER, entries, lease=LEASE)


def trim(broker: Broker, state: State) -> Call:
    for _ in range(3):
        state.seed("dead")
    return lambda: broker.trim(dead_limit=1, dead_retention=1e6)


def purge(broker: Broker, state: State) -> Call:
    for _ in range(3):
        state.seed("pending")
    return lambda: broker.purge("default")


VERBS = [submit, claim, complete, fail_and_release, cancel, retry, promote, reap, hand_back, trim, purge]
"""Each prepares a namespace and returns a call that may be repeated."""


@contextmanager
def in_place_of(client: redis.Redis, key: str) -> Iterator[None]:
    """Have something of no use stand at `key`; then what stood there before."""
    existed = client.exists(key)
    if existed:
        client.rename(key, f"kept aside:{key}")
    if key.endswith("token") or "claim:" in key:
        client.rpush(key, "a list")
    else:
        client.set(key, "not what belongs here")
    yield
    client.delete(key)
    if existed:
        client.rename(f"kept aside:{key}", key)


@pytest.mark.parametrize("prepare", VERBS, ids=lambda verb: verb.__name__)
@pytest.mark.parametrize(
    "name",
    [
        "mover", "token", "queues", "ghosts", "claims", "corrupt", "totals", "cancels", "paused", "recent",
        "dead", "delayed", "processing", "reaper", "wake:default", f"claim:{WORKER}",
    ],
)  # fmt: skip
def test_a_call_that_is_repeated_once_the_key_is_mended_does_all_of_it(
    broker: Broker,
    state: State,
    redis_client: redis.Redis,
    keys: Keys,
    name: str,
    prepare: Callable[[Broker, State], Call],
) -> None:
    call = prepare(broker, state)
    with in_place_of(redis_client, keys(name)):
        for _ in range(2):
            with suppress(Unavailable):
                call()

    call()

    state.assert_sums()


def test_a_second_thing_in_place_of_a_list_does_not_overwrite_the_first(
    broker: Broker, state: State, redis_client: redis.Redis
) -> None:
    for text in ("the first", "the second", "the third"):
        state.put_in_place_of("pending:default", text)
        broker.submit([Submission(new_id(), "thumbnail", b"{}")])
        for lease in broker.claim(request()).leases:
            broker.complete(lease.id, lease.token, b"1")

    aside = [f"misplaced:default{n}" for n in ("", ":2", ":3")]
    assert [redis_client.get(state.keys(name)) for name in aside] == [
        b"the first", b"the second", b"the third",
    ]  # fmt: skip


def test_a_dead_task_without_its_queue_does_not_take_the_others_along(broker: Broker, state: State) -> None:
    bad, good = state.seed("dead"), state.seed("dead")
    state.spoil(bad, "queue")

    assert broker.retry([bad, good], nonce="n") == ["ok", "ok"]

    assert state.pending() == [bad, good]


def test_what_is_listed_as_dead_and_is_not_is_not_trimmed(
    broker: Broker, state: State, redis_client: redis.Redis
) -> None:
    id, dead = state.seed("pending"), state.seed("dead")
    redis_client.zadd(state.keys("dead"), {id: 1})

    broker.trim(dead_limit=0, dead_retention=1e6)

    assert (state.pending(), state.ids("dead")) == ([id], [])
    assert state.task(dead) == {}
    assert state.total("strays") == 1
