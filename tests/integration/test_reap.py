"""reap: tasks whose lease has expired go back to their queue; after an outage nobody reaps at once."""

from __future__ import annotations

import pytest
import redis

from prefork_q.broker import Broker, Renewal
from prefork_q.errors import Stale
from prefork_q.keys import Keys
from prefork_q.leases import Limits
from prefork_q.states import Status
from tests.support.server import Server
from tests.support.state import LEASE, State, request


@pytest.fixture(autouse=True)
def keepers(state: State) -> None:
    state.keepers_are_heard_of()


def expired(state: State, **options: object) -> str:
    id = state.seed("processing", **options)
    state.age(id)
    return id


def test_a_task_that_had_not_started_goes_back_uncharged(broker: Broker, state: State) -> None:
    waiting = state.seed("pending")
    id = expired(state, token=7, attempts=1)

    reaped = broker.reap(lease=LEASE)

    assert [(one.id, one.status, one.losses) for one in reaped.expired] == [(id, Status.PENDING, 0)]
    assert state.pending() == [id, waiting]
    assert state.task(id)["attempts"] == "0"
    assert state.wakes() == 1
    assert (state.total("expired"), state.total("losses")) == (1, 0)


def test_a_task_that_had_started_is_charged_a_loss_and_no_attempt(broker: Broker, state: State) -> None:
    id = expired(state, token=7, attempts=2, is_started=True)

    (one,) = broker.reap(lease=LEASE).expired

    assert (one.status, one.losses) == (Status.PENDING, 1)
    assert (state.task(id)["attempts"], state.task(id)["losses"]) == ("1", "1")
    assert state.total("losses") == 1


def test_a_start_under_another_lease_does_not_count(broker: Broker, state: State) -> None:
    id = state.seed("pending")
    (first,) = broker.claim(request()).leases
    broker.renew([Renewal(id, first.token, True)], lease=LEASE)
    broker.release(id, first.token)
    broker.claim(request())
    state.age(id)

    (one,) = broker.reap(lease=LEASE).expired

    assert one.losses == 0


def test_a_lease_that_runs_is_left_alone(broker: Broker, state: State) -> None:
    state.seed("processing", token=7)
    before = state.snapshot(without=["reaper"])

    assert broker.reap(lease=LEASE).expired == []

    assert state.snapshot(without=["reaper"]) == before


def test_the_old_holder_is_stale(broker: Broker, state: State) -> None:
    id = expired(state, token=7)
    broker.reap(lease=LEASE)
    before = state.snapshot()

    with pytest.raises(Stale):
        broker.complete(id, 7, b"1")
    with pytest.raises(Stale):
        broker.release(id, 7)

    assert state.snapshot() == before


def test_over_ten_losses_it_is_dead(broker: Broker, state: State) -> None:
    last, over = (
        expired(state, token=7, losses=9, is_started=True),
        expired(state, token=7, losses=10, is_started=True),
    )

    reaped = {one.id: one for one in broker.reap(lease=LEASE).expired}

    assert (reaped[last].status, reaped[over].status) == (Status.PENDING, Status.DEAD)
    assert "LeaseLost" in state.task(over)["error"]
    assert state.ids("dead") == [over]


def test_a_cancellation_asked_for_makes_it_cancelled(broker: Broker, state: State) -> None:
    id = expired(state, token=7, is_cancel_requested=True)

    (one,) = broker.reap(lease=LEASE).expired

    assert one.status is state.status(id) is Status.CANCELLED


def test_the_same_call_again_changes_nothing(broker: Broker, state: State) -> None:
    expired(state, token=7)
    broker.reap(lease=LEASE)
    before = state.snapshot(without=["reaper"])

    assert broker.reap(lease=LEASE).expired == []

    assert state.snapshot(without=["reaper"]) == before


def test_as_many_as_asked_for_are_reaped_a_call(broker: Broker, state: State) -> None:
    ids = {expired(state, token=7) for _ in range(1_200)}
    state.keepers_are_heard_of()  # again: on a busy machine those took a while

    reaped = [broker.reap(lease=LEASE, limit=500).expired for _ in range(3)]

    assert [len(one) for one in reaped] == [500, 500, 200]
    assert set(state.pending()) == ids


def test_what_has_no_record_is_dropped_and_counted(broker: Broker, state: State) -> None:
    gone, bad, good = (expired(state, token=7) for _ in range(3))
    state.lose(f"task:{gone}")
    state.put_in_place_of(f"task:{bad}")

    assert [one.id for one in broker.reap(lease=LEASE).expired] == [good]

    assert set(state.ids("corrupt")) == {gone, bad}
    assert state.total("removed") == 2
    state.lose(f"task:{bad}")


def test_a_spoilt_record_goes_back_all_the_same(broker: Broker, state: State) -> None:
    ids = [expired(state, token=7) for _ in range(3)]
    state.spoil(ids[0], "queue")
    state.spoil(ids[1], "type")
    state.spoil(ids[2], "attempts", "nonsense")

    assert {one.id for one in broker.reap(lease=LEASE).expired} == set(ids)

    assert set(state.pending()) == set(ids)
    state.spoil(ids[0], "queue", "default")


def test_a_stray_id_is_dropped(broker: Broker, state: State, redis_client: redis.Redis) -> None:
    id = state.seed("dead")
    redis_client.zadd(state.keys("processing"), {id: 1})

    assert broker.reap(lease=LEASE).expired == []

    assert state.status(id) is Status.DEAD


# -- after an outage


def test_after_a_silence_nobody_reaps_for_a_lease(broker: Broker, state: State) -> None:
    id = expired(state, token=7)
    state.keepers_fell_silent(6)

    assert broker.reap(lease=LEASE).is_holding
    assert broker.reap(lease=LEASE).is_holding
    assert state.status(id) is Status.PROCESSING

    state.hold_has_passed()
    assert [one.id for one in broker.reap(lease=LEASE).expired] == [id]


def test_the_first_reap_ever_holds_off(broker: Broker, state: State) -> None:
    state.lose("reaper")
    expired(state, token=7)

    assert broker.reap(lease=LEASE).is_holding


def test_a_renewal_after_a_silence_holds_the_reapers_off_too(broker: Broker, state: State) -> None:
    mine, theirs = state.seed("processing", token=7), expired(state, token=8)
    state.keepers_fell_silent(20)

    broker.renew([Renewal(mine, 7, True)], lease=LEASE)

    assert broker.reap(lease=LEASE).is_holding
    assert state.status(theirs) is Status.PROCESSING


def test_a_node_with_a_short_lease_does_not_end_the_wait_of_the_others(broker: Broker, state: State) -> None:
    theirs = expired(state, token=8)
    state.keepers_fell_silent(20)
    broker.renew([Renewal("nobody", 7, True)], lease=60.0)

    assert broker.reap(lease=3.0).is_holding
    state.time_passes(1)

    assert broker.reap(lease=3.0).is_holding
    hold = state.snapshot()["reaper"][0]["hold"]
    assert int(hold) - state.now_ms() > 50_000
    assert state.status(theirs) is Status.PROCESSING


def test_renewals_keep_the_silence_from_beginning(broker: Broker, state: State) -> None:
    id = expired(state, token=7)
    for _ in range(3):
        state.time_passes(4)
        broker.renew([Renewal("nobody", 1, False)], lease=LEASE)

    assert [one.id for one in broker.reap(lease=LEASE).expired] == [id]


@pytest.mark.parametrize(("lease", "silence", "is_holding"), [(30, 4, False), (30, 6, True), (4, 3, True)])
def test_a_silence_is_five_seconds_or_half_a_lease(
    broker: Broker, state: State, lease: float, silence: float, is_holding: bool
) -> None:
    state.keepers_fell_silent(silence)

    assert broker.reap(lease=lease).is_holding is is_holding


def test_a_clock_that_was_set_back_holds_for_a_lease_at_most(
    broker: Broker, state: State, redis_client: redis.Redis
) -> None:
    ahead = state.now_ms() + 3_600_000
    redis_client.hset(state.keys("reaper"), mapping={"last": ahead, "hold": ahead})

    assert broker.reap(lease=LEASE).is_holding

    hold = int(redis_client.hget(state.keys("reaper"), "hold"))
    assert hold - state.now_ms() <= LEASE * 1000


def test_the_number_of_losses_is_a_limit_of_the_caller(server: Server, keys: Keys, state: State) -> None:
    broker = Broker(server.client(), keys, Limits(max_losses=0))
    expired(state, token=7, is_started=True)

    assert [one.status for one in broker.reap(lease=LEASE).expired] == [Status.DEAD]
