"""hand_back: what a dead worker held goes back at once, and what it was running is charged."""

from __future__ import annotations

import pytest

from prefork_q.broker import Broker, HandBack, Renewal
from prefork_q.errors import Stale
from prefork_q.keys import Keys
from prefork_q.leases import Limits
from prefork_q.states import Status
from tests.support.server import Server
from tests.support.state import LEASE, State, request

WORKER = "node.0.1"
SIGNAL = b'{"type":"WorkerDied","message":"killed by signal 9","cause":{"signal":9}}'


def test_what_had_not_started_goes_back_uncharged(broker: Broker, state: State) -> None:
    waiting = state.seed("pending")
    id = state.seed("processing", token=7, attempts=2)

    returned = broker.hand_back(WORKER, [HandBack(id, 7)], lease=LEASE)

    assert [(one.id, one.status) for one in returned] == [(id, Status.PENDING)]
    assert state.pending() == [id, waiting]
    assert state.task(id)["attempts"] == "1"
    assert state.wakes() == 1
    assert (state.total("released"), state.total("crashes")) == (1, 0)


def test_what_was_running_is_charged_a_crash_and_no_attempt(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7, attempts=1)

    (one,) = broker.hand_back(WORKER, [HandBack(id, 7, "crashed", SIGNAL)], lease=LEASE)

    task = state.task(id)
    assert one.status is Status.PENDING
    assert (task["attempts"], task["crashes"], task["error"]) == ("0", "1", SIGNAL.decode())
    assert (state.total("released"), state.total("crashes")) == (0, 1)


def test_over_the_limit_of_crashes_it_is_dead_with_the_signal(
    server: Server, keys: Keys, state: State
) -> None:
    broker = Broker(server.client(), keys, Limits(max_crashes=2))
    last, over = state.seed("processing", token=7, crashes=1), state.seed("processing", token=7, crashes=2)

    returned = broker.hand_back(
        WORKER, [HandBack(last, 7, "crashed", SIGNAL), HandBack(over, 7, "crashed", SIGNAL)], lease=LEASE
    )

    assert [one.status for one in returned] == [Status.PENDING, Status.DEAD]
    assert (state.task(over)["error"], state.task(over)["crashes"]) == (SIGNAL.decode(), "3")
    assert state.ids("dead") == [over]


def test_without_a_crash_to_spare_what_ran_alone_is_dead_and_who_ran_beside_others_is_not_yet(
    server: Server, keys: Keys, state: State
) -> None:
    broker = Broker(server.client(), keys, Limits(max_crashes=0))
    alone, *together = (state.seed("processing", token=7) for _ in range(3))

    (dead,) = broker.hand_back(WORKER, [HandBack(alone, 7, "crashed", SIGNAL)], lease=LEASE)
    back = broker.hand_back("node.0.2", [HandBack(id, 7, "crashed", SIGNAL) for id in together], lease=LEASE)

    assert dead.status is Status.DEAD
    assert [one.status for one in back] == [Status.PENDING] * 2
    (lease,) = broker.claim(request("node.0.3", room=5)).leases
    entry = HandBack(lease.id.decode(), lease.token, "crashed", SIGNAL)
    (again,) = broker.hand_back("node.0.3", [entry], lease=LEASE)
    assert again.status is Status.DEAD


def test_a_neighbour_with_many_crashes_is_not_dead_for_being_held(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7, crashes=9)

    (one,) = broker.hand_back(WORKER, [HandBack(id, 7)], lease=LEASE)

    assert one.status is Status.PENDING


def test_a_task_that_was_killed_for_its_time_limit_has_used_its_attempt(broker: Broker, state: State) -> None:
    retried, dead = (state.seed("processing", token=7, attempts=2) for _ in range(2))
    error = b'{"type":"TaskTimeout","message":"30 s"}'

    returned = broker.hand_back(
        WORKER,
        [HandBack(retried, 7, "timed_out", error, 20), HandBack(dead, 7, "timed_out", error)],
        lease=LEASE,
    )

    assert [one.status for one in returned] == [Status.DELAYED, Status.DEAD]
    assert state.due_in(retried) == pytest.approx(20, abs=2)
    assert [state.task(id)["attempts"] for id in (retried, dead)] == ["2", "2"]
    assert [state.task(id)["error"] for id in (retried, dead)] == [error.decode()] * 2
    assert (state.total("failed"), state.total("retried"), state.total("crashes")) == (2, 1, 0)


@pytest.mark.parametrize("verdict", ["held", "crashed", "timed_out"])
def test_a_cancellation_asked_for_makes_it_cancelled(broker: Broker, state: State, verdict: str) -> None:
    id = state.seed("processing", token=7, crashes=9, is_cancel_requested=True)

    (one,) = broker.hand_back(WORKER, [HandBack(id, 7, verdict, b"{}", 5)], lease=LEASE)

    assert one.status is state.status(id) is Status.CANCELLED


def test_a_claim_whose_answer_never_arrived_goes_back_too(broker: Broker, state: State) -> None:
    ids = [state.seed("pending") for _ in range(3)]
    broker.claim(request(WORKER, room=3))

    returned = broker.hand_back(WORKER, [], lease=LEASE)

    assert [one.id for one in returned] == ids
    assert state.pending() == ids
    assert [state.task(id)["attempts"] for id in ids] == ["0"] * 3


def test_what_both_the_slot_and_the_record_name_goes_back_once(broker: Broker, state: State) -> None:
    running, held = (state.seed("pending") for _ in range(2))
    leases = broker.claim(request(WORKER, room=2)).leases

    returned = broker.hand_back(WORKER, [HandBack(running, leases[0].token, "crashed", SIGNAL)], lease=LEASE)

    assert [one.id for one in returned] == [running, held]
    assert [state.task(id).get("crashes") for id in (running, held)] == ["1", None]


def test_what_was_done_or_claimed_again_is_left_alone(broker: Broker, state: State) -> None:
    done, elsewhere = (state.seed("pending") for _ in range(2))
    first, second = broker.claim(request(WORKER, room=2)).leases
    broker.complete(done, first.token, b"1")
    state.age(elsewhere)
    state.keepers_are_heard_of()
    broker.reap(lease=LEASE)
    broker.claim(request("node.0.2"))
    before = state.snapshot(without=["claim:node.0.1", "claims"])

    entries = [
        HandBack(done, first.token, "crashed", SIGNAL),
        HandBack(elsewhere, second.token, "crashed", SIGNAL),
    ]
    assert broker.hand_back(WORKER, entries, lease=LEASE) == []

    assert state.snapshot(without=["claim:node.0.1", "claims"]) == before


def test_the_dead_worker_is_stale_from_then_on(broker: Broker, state: State) -> None:
    id = state.seed("pending")
    (lease,) = broker.claim(request(WORKER)).leases
    broker.hand_back(WORKER, [], lease=LEASE)

    with pytest.raises(Stale):
        broker.complete(id, lease.token, b"1")
    assert broker.renew([Renewal(id, lease.token, True)], lease=LEASE) == ["stale"]
    assert broker.claim(request(WORKER)).is_gone


def test_the_same_call_again_puts_nothing_back(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7)
    entries = [HandBack(id, 7, "crashed", SIGNAL)]
    broker.hand_back(WORKER, entries, lease=LEASE)
    before = state.snapshot()

    assert broker.hand_back(WORKER, entries, lease=LEASE) == []

    assert state.snapshot() == before


def test_a_bad_entry_does_not_harm_the_others(broker: Broker, state: State) -> None:
    bad, good = state.seed("processing", token=7), state.seed("processing", token=7)
    state.put_in_place_of(f"task:{bad}")

    returned = broker.hand_back(
        WORKER, [HandBack("nobody", 7), HandBack(bad, 7, "crashed", SIGNAL), HandBack(good, 7)], lease=LEASE
    )

    assert [one.id for one in returned] == [good]
    state.lose(f"task:{bad}")
    state.age(bad)
    state.keepers_are_heard_of()
    broker.reap(lease=LEASE)


def test_a_spoilt_record_goes_back_all_the_same(broker: Broker, state: State) -> None:
    ids = [state.seed("processing", token=7) for _ in range(3)]
    state.spoil(ids[0], "queue")
    state.spoil(ids[1], "type")
    state.spoil(ids[2], "attempts", "nonsense")

    assert len(broker.hand_back(WORKER, [HandBack(id, 7) for id in ids], lease=LEASE)) == 3

    assert state.pending() == ids
    state.spoil(ids[0], "queue", "default")


def test_a_full_worker_goes_back_whole_and_in_order(broker: Broker, state: State) -> None:
    ids = [state.seed("pending") for _ in range(1_500)]
    first = broker.claim(request(WORKER, room=1_000)).leases
    broker.claim(request(WORKER, room=500))

    entries = [HandBack(lease.id.decode(), lease.token) for lease in first]
    returned = broker.hand_back(WORKER, entries, lease=LEASE)

    assert len(returned) == 1_500
    assert state.pending() == ids
