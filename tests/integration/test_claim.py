"""claim: what leaves a pending list is leased, and nothing is lost on the way."""

from __future__ import annotations

import pytest
import redis

from prefork_q.broker import Broker, HandBack, Renewal
from prefork_q.errors import Unavailable
from prefork_q.ids import new_id
from prefork_q.leases import MAX_CLAIM_BYTES
from prefork_q.states import Status
from prefork_q.task import Submission
from tests.support.state import LEASE, State, request

PAYLOADS = [
    b"9007199254740993", b"[]", b"{}", b"1e-7", b'{"a":[],"b":{},"n":-9223372036854775808}', b'"\xc3\xa9"',
]


def test_a_claimed_task_is_leased_under_a_token(broker: Broker, state: State) -> None:
    id = state.seed("pending", crashes=0, max_attempts=4, timeout=1.5)

    (lease,) = broker.claim(request()).leases

    assert (lease.id.decode(), lease.attempt, lease.max_attempts, lease.timeout_ms) == (id, 1, 4, 1500)
    assert state.status(id) is Status.PROCESSING
    assert state.pending() == []
    assert state.expiry(id) == pytest.approx(LEASE, abs=2)
    assert state.task(id)["token"] == str(lease.token)
    assert state.task(id)["attempts"] == "1"


def test_an_empty_queue_gives_nothing_and_leaves_only_a_record_of_the_call(
    broker: Broker, state: State
) -> None:
    claimed = broker.claim(request("node.0.7", room=5))

    assert (claimed.leases, claimed.dropped, claimed.is_gone) == ([], (), False)
    assert state.snapshot(without=["claim:node.0.7"]) == {}


def test_a_claim_says_whether_it_left_something_to_claim(broker: Broker, state: State) -> None:
    state.seed("pending", queue="paused")
    broker.pause("paused")
    for _ in range(3):
        state.seed("pending")

    answers = [broker.claim(request(room=room, queues=["default", "paused"])) for room in (2, 0, 2)]

    assert [answer.has_more for answer in answers] == [True, True, False]


def test_as_many_are_claimed_as_there_is_room_for(broker: Broker, state: State) -> None:
    ids = [state.seed("pending") for _ in range(5)]

    leases = broker.claim(request(room=3)).leases

    assert [lease.id.decode() for lease in leases] == ids[:3]
    assert state.pending() == ids[3:]
    assert len({lease.token for lease in leases}) == 1


def test_queues_are_emptied_in_their_order(broker: Broker, state: State) -> None:
    low = state.seed("pending", queue="low")
    high = [state.seed("pending", queue="high") for _ in range(2)]

    leases = broker.claim(request(room=5, queues=["high", "low"])).leases

    assert [lease.id.decode() for lease in leases] == [*high, low]


def test_a_paused_queue_gives_nothing(broker: Broker, state: State) -> None:
    state.seed("pending", queue="paused")
    other = state.seed("pending", queue="open")
    broker.pause("paused")

    leases = broker.claim(request(room=5, queues=["paused", "open"])).leases

    assert [lease.id.decode() for lease in leases] == [other]
    assert state.wakes("paused") == 0


@pytest.mark.parametrize("body", PAYLOADS)
def test_a_payload_comes_out_byte_for_byte(broker: Broker, state: State, body: bytes) -> None:
    id = state.seed("pending", body=body, max_attempts=9)

    (first,) = broker.claim(request()).leases
    broker.fail(first.id, first.token, b"{}", delay=60)
    state.age(id)
    broker.promote()
    (second,) = broker.claim(request("node.0.2")).leases
    broker.hand_back("node.0.2", [HandBack(id, second.token, "crashed", b"{}")], lease=LEASE)
    (third,) = broker.claim(request()).leases
    broker.fail(third.id, third.token, b"{}", delay=None)
    broker.retry([id], nonce="n")
    (fourth,) = broker.claim(request()).leases

    assert [first.body, second.body, third.body, fourth.body] == [body] * 4


def test_the_wait_is_counted_from_when_the_task_became_pending(broker: Broker, state: State) -> None:
    id = state.seed("delayed", due=-5)
    broker.promote()
    (lease,) = broker.claim(request()).leases
    assert lease.wait_ms < 2_000

    broker.release(id, lease.token)
    (lease,) = broker.claim(request()).leases
    assert lease.wait_ms < 2_000


def test_the_wait_of_a_task_for_later_is_counted_from_when_it_was_due(broker: Broker, state: State) -> None:
    id = new_id()
    broker.submit([Submission(id, "t", b"{}", delay=600.0)])
    state.spoil(id, "created_at", str(state.now_ms() - 600_000))
    state.age(id)
    broker.promote()

    (lease,) = broker.claim(request()).leases

    assert (lease.attempt, lease.wait_ms < 60_000) == (1, True)


# -- tokens and records


def test_tokens_only_grow(broker: Broker, state: State) -> None:
    for _ in range(3):
        state.seed("pending")

    tokens = [broker.claim(request()).leases[0].token for _ in range(3)]

    assert tokens == sorted(set(tokens))
    assert abs(tokens[0] / 1000 - state.now_ms()) < 60_000


def test_tokens_grow_when_the_clock_was_set_back(broker: Broker, state: State) -> None:
    ahead = state.now_ms() * 1000 + 10**12
    state.last_token(ahead)
    ids = [state.seed("pending") for _ in range(2)]

    tokens = [broker.claim(request()).leases[0].token for _ in range(2)]

    assert tokens == [ahead + 1, ahead + 2]
    assert [state.task(id)["token"] for id in ids] == [str(ahead + 1), str(ahead + 2)]


def test_the_same_call_again_gives_the_same_leases(broker: Broker, state: State) -> None:
    for body in (b"1", b"2", b"3"):
        state.seed("pending", body=body, timeout=3)
    call = request(room=2)
    first = broker.claim(call)
    before = state.snapshot()

    again = broker.claim(call)

    assert [lease._replace(wait_ms=0) for lease in again.leases] == [
        lease._replace(wait_ms=0) for lease in first.leases
    ]
    assert state.snapshot() == before


def test_the_same_call_again_leaves_out_what_is_not_held_any_more(broker: Broker, state: State) -> None:
    for _ in range(2):
        state.seed("pending")
    call = request(room=2)
    kept, done = broker.claim(call).leases
    broker.complete(done.id, done.token, b"null")

    assert [lease.id for lease in broker.claim(call).leases] == [kept.id]


def test_the_same_call_again_leaves_out_what_another_holds_by_now(broker: Broker, state: State) -> None:
    id = state.seed("pending")
    call = request()
    broker.claim(call)
    state.age(id)
    state.keepers_are_heard_of()
    broker.reap(lease=LEASE)
    broker.claim(request("node.0.2"))

    assert broker.claim(call).leases == []


def test_a_claim_in_the_name_of_a_dead_worker_is_refused(broker: Broker, state: State) -> None:
    state.seed("pending")
    broker.hand_back("node.0.7", [], lease=LEASE)
    before = state.snapshot()

    claimed = broker.claim(request("node.0.7"))

    assert claimed.is_gone
    assert claimed.leases == []
    assert state.snapshot() == before


def test_a_call_that_arrives_after_a_later_one_takes_nothing(broker: Broker, state: State) -> None:
    late, later = request("node.0.7", seq=8), request("node.0.7", seq=9)
    broker.claim(later)
    state.seed("pending")
    before = state.snapshot()

    claimed = broker.claim(late)

    assert (claimed.leases, claimed.has_more) == ([], False)
    assert state.snapshot() == before


def test_the_record_of_a_claim_outlasts_its_leases_and_then_goes(broker: Broker, state: State) -> None:
    state.seed("pending")

    broker.claim(request("node.0.7"))

    value, has_ttl = state.snapshot()["claim:node.0.7"]
    assert has_ttl
    assert len(value.split()) == 3


# -- room, paces, bytes


def test_without_room_nothing_is_claimed_and_the_token_is_put_back(broker: Broker, state: State) -> None:
    id = state.seed("pending")

    claimed = broker.claim(request(room=0))

    assert claimed.leases == []
    assert state.pending() == [id]
    assert state.wakes() == 1


def test_without_room_an_empty_or_paused_queue_gets_no_token(broker: Broker, state: State) -> None:
    state.seed("pending", queue="paused")
    broker.pause("paused")

    broker.claim(request(room=0, queues=["default", "paused"]))

    assert (state.wakes(), state.wakes("paused")) == (0, 0)


def test_who_leaves_tasks_behind_leaves_one_token(broker: Broker, state: State) -> None:
    for _ in range(3):
        state.seed("pending")

    broker.claim(request())
    broker.claim(request())
    assert state.wakes() == 1

    state.take_wake()
    broker.claim(request())
    assert state.wakes() == 0


def test_beyond_its_room_a_worker_gets_quick_types_while_they_fit_the_budget(
    broker: Broker, state: State
) -> None:
    for _ in range(10):
        state.seed("pending", type="quick")
    call = request(room=2, limit=64, budget=0.1, paces={"quick": 0.02})

    assert len(broker.claim(call).leases) == 5


def test_a_type_of_unknown_pace_is_claimed_for_room_only(broker: Broker, state: State) -> None:
    state.seed("pending", type="quick")
    state.seed("pending", type="new")
    state.seed("pending", type="quick")
    call = request(room=1, limit=64, budget=0.1, paces={"quick": 0.001})

    assert [lease.type for lease in broker.claim(call).leases] == [b"quick"]


def test_a_slow_type_is_claimed_for_room_only(broker: Broker, state: State) -> None:
    for _ in range(3):
        state.seed("pending", type="slow")
    call = request(room=1, limit=64, budget=0.1, paces={"slow": 0.2})

    assert len(broker.claim(call).leases) == 1


def test_a_claim_is_bounded_by_bytes_but_never_below_one_task(broker: Broker, state: State) -> None:
    half = b'"' + b"x" * (MAX_CLAIM_BYTES // 2 - 2) + b'"'
    whole = b'"' + b"x" * (MAX_CLAIM_BYTES + 100) + b'"'
    for body in (half, half, whole, b"1", b"2"):
        state.seed("pending", body=body)

    sizes = [[len(lease.body) for lease in broker.claim(request(room=9)).leases] for _ in range(3)]

    assert sizes == [[len(half)] * 2, [len(whole)], [1, 1]]


# -- suspects


def test_a_suspect_is_claimed_alone(broker: Broker, state: State) -> None:
    suspect = state.seed("pending", crashes=1)
    state.seed("pending")

    leases = broker.claim(request(room=9)).leases

    assert [(lease.id.decode(), lease.crashes) for lease in leases] == [(suspect, 1)]


def test_a_claim_ends_before_a_suspect(broker: Broker, state: State) -> None:
    good = [state.seed("pending") for _ in range(2)]
    suspect = state.seed("pending", crashes=1)
    state.seed("pending")

    leases = broker.claim(request(room=9)).leases

    assert [lease.id.decode() for lease in leases] == good
    assert state.pending()[0] == suspect
    assert state.wakes() == 1


def test_a_suspect_of_another_queue_is_not_added_either(broker: Broker, state: State) -> None:
    good = state.seed("pending", queue="high")
    state.seed("pending", queue="low", crashes=2)

    leases = broker.claim(request(room=9, queues=["high", "low"])).leases

    assert [lease.id.decode() for lease in leases] == [good]


def test_a_suspect_is_not_prefetched_however_quick(broker: Broker, state: State) -> None:
    state.seed("pending", type="quick", crashes=1)

    assert broker.claim(request(room=0, limit=9, budget=1, paces={"quick": 0.001})).leases == []


# -- what is not as it should be


def test_ghosts_are_dropped_and_get_their_lifetime(broker: Broker, state: State) -> None:
    ghost = state.seed("pending", idempotency_key="k")
    id = state.seed("pending")
    broker.cancel(ghost)

    (lease,) = broker.claim(request()).leases

    assert lease.id.decode() == id
    assert state.pending() == []
    assert state.body(ghost) is None
    assert state.lifetimes(ghost, "k") == pytest.approx([86_400, 86_400], abs=5)


def test_a_thousand_ghosts_are_the_most_that_one_claim_drops(broker: Broker, state: State) -> None:
    for _ in range(1_100):
        broker.cancel(state.seed("pending"))
    id = state.seed("pending")

    assert broker.claim(request(room=5)).leases == []
    assert len(state.pending()) == 101
    assert state.wakes() == 1
    assert [lease.id.decode() for lease in broker.claim(request(room=5)).leases] == [id]


def test_an_id_without_a_record_is_dropped_told_and_counted(broker: Broker, state: State) -> None:
    gone, id = state.seed("pending"), state.seed("pending")
    state.lose(f"task:{gone}")

    claimed = broker.claim(request(room=5))

    assert [lease.id.decode() for lease in claimed.leases] == [id]
    assert [name for name, _ in claimed.dropped] == [gone]
    assert state.ids("corrupt") == [gone]
    assert (state.total("corrupt"), state.total("removed")) == (1, 1)


def test_the_list_of_what_was_corrupt_is_bounded(
    broker: Broker, state: State, redis_client: redis.Redis
) -> None:
    redis_client.zadd(state.keys("corrupt"), {f"old-{n}": n for n in range(1_000)})
    gone = state.seed("pending")
    state.lose(f"task:{gone}")

    broker.claim(request())

    assert len(state.ids("corrupt")) == 1_000
    assert state.ids("corrupt")[-1] == gone


def test_a_record_of_the_wrong_type_is_dropped_likewise(broker: Broker, state: State) -> None:
    bad, id = state.seed("pending"), state.seed("pending")
    state.put_in_place_of(f"task:{bad}")

    claimed = broker.claim(request(room=5))

    assert [lease.id.decode() for lease in claimed.leases] == [id]
    assert state.ids("corrupt") == [bad]
    state.lose(f"task:{bad}")


def test_a_record_without_its_type_is_dropped_likewise(broker: Broker, state: State) -> None:
    bad, id = state.seed("pending"), state.seed("pending")
    state.spoil(bad, "type")

    assert [lease.id.decode() for lease in broker.claim(request(room=5)).leases] == [id]

    assert state.ids("corrupt") == [bad]
    state.lose(f"task:{bad}")


def test_a_counter_that_is_no_number_stops_nothing(broker: Broker, state: State) -> None:
    names = ["attempts", "crashes", "ready_at", "created_at", "max_attempts", "timeout_ms"]
    ids = [state.seed("pending", attempts=1, timeout=5) for _ in names]
    for id, name in zip(ids, names, strict=True):
        state.spoil(id, name, "nonsense")

    leases = broker.claim(request(room=9)).leases

    assert [lease.id.decode() for lease in leases] == ids
    for lease in leases:
        broker.release(lease.id, lease.token)


@pytest.mark.parametrize("how", ["missing", "misplaced"])
def test_a_task_without_a_payload_is_dead(
    broker: Broker, state: State, redis_client: redis.Redis, how: str
) -> None:
    bad, id = state.seed("pending"), state.seed("pending")
    state.lose_body(bad)
    if how == "misplaced":
        redis_client.rpush(state.keys.body(bad), "a list")

    claimed = broker.claim(request(room=5))

    assert [lease.id.decode() for lease in claimed.leases] == [id]
    assert state.status(bad) is Status.DEAD
    assert "PayloadMissing" in state.task(bad)["error"]
    assert [name for name, _ in claimed.dropped] == [bad]
    broker.delete([bad])


def test_an_id_that_is_listed_twice_is_claimed_once(broker: Broker, state: State) -> None:
    id, other = state.seed("pending"), state.seed("pending")
    state.list_again(id)

    leases = broker.claim(request(room=5)).leases

    assert [lease.id.decode() for lease in leases] == [id, other]
    assert state.total("strays") == 1


def test_a_stray_id_of_a_running_task_is_dropped(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=5)
    state.list_again(id)

    assert broker.claim(request()).leases == []

    assert state.task(id)["token"] == "5"
    assert state.pending() == []


def test_a_ghost_that_is_listed_twice_is_counted_once(broker: Broker, state: State) -> None:
    id = state.seed("pending")
    broker.cancel(id)
    state.list_again(id)

    broker.claim(request())

    assert state.pending() == []
    assert state.total("strays") == 1


def test_what_is_no_list_is_set_aside_and_the_other_queues_are_served(broker: Broker, state: State) -> None:
    state.put_in_place_of("pending:broken")
    id = state.seed("pending")

    claimed = broker.claim(request(room=5, queues=["broken", "default"]))

    assert [lease.id.decode() for lease in claimed.leases] == [id]
    assert [name for name, _ in claimed.dropped] == ["broken"]
    assert broker.claim(request(room=5, queues=["broken", "default"])).dropped == ()


def test_a_wrong_key_that_matters_refuses_and_changes_nothing(broker: Broker, state: State) -> None:
    state.seed("pending")
    state.put_in_place_of("processing")
    before = state.snapshot()

    with pytest.raises(Unavailable):
        broker.claim(request())

    assert state.snapshot() == before
    state.lose("processing")


def test_a_claimed_task_can_be_renewed_under_its_token(broker: Broker, state: State) -> None:
    id = state.seed("pending")
    (lease,) = broker.claim(request()).leases
    state.age(id, by=20)

    assert broker.renew([Renewal(id, lease.token, False)], lease=LEASE) == ["ok"]

    assert state.expiry(id) == pytest.approx(LEASE, abs=2)
