"""renew: leases are extended by whoever holds them, in batches; a stale one is told so."""

from __future__ import annotations

import pytest

from prefork_q.broker import Broker, Renewal
from tests.support.state import LEASE, State, request


def test_a_renewed_lease_lasts_from_now(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7, lease=3)

    assert broker.renew([Renewal(id, 7, False)], lease=LEASE) == ["ok"]

    assert state.expiry(id) == pytest.approx(LEASE, abs=2)


def test_an_expired_lease_that_nobody_reaped_can_be_renewed(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7)
    state.age(id)

    assert broker.renew([Renewal(id, 7, False)], lease=LEASE) == ["ok"]

    state.keepers_are_heard_of()
    assert broker.reap(lease=LEASE).expired == []


@pytest.mark.parametrize("status", ["pending", "delayed", "processing", "succeeded", "dead", "cancelled"])
def test_a_stale_renewal_changes_nothing(broker: Broker, state: State, status: str) -> None:
    id = state.seed(status, token=7)
    before = state.snapshot(without=["reaper"])

    assert broker.renew([Renewal(id, 6, True), Renewal("nobody", 6, True)], lease=LEASE) == ["stale"] * 2

    assert state.snapshot(without=["reaper"]) == before


@pytest.mark.parametrize("status", ["pending", "delayed", "succeeded", "dead", "cancelled"])
def test_what_is_not_processing_cannot_be_renewed_with_its_last_token(
    broker: Broker, state: State, status: str
) -> None:
    id = state.seed(status, token=7)

    assert broker.renew([Renewal(id, 7, True)], lease=LEASE) == ["stale"]


def test_an_unreadable_task_is_stale(broker: Broker, state: State) -> None:
    id, good = state.seed("processing", token=7), state.seed("processing", token=7)
    state.put_in_place_of(f"task:{id}")

    assert broker.renew([Renewal(id, 7, False), Renewal(good, 7, False)], lease=LEASE) == ["stale", "ok"]

    state.lose(f"task:{id}")
    state.age(id)
    state.keepers_are_heard_of()
    broker.reap(lease=LEASE)


def test_the_renewer_learns_of_a_cancellation(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7)
    broker.cancel(id)

    assert broker.renew([Renewal(id, 7, False)], lease=LEASE) == ["cancel"]

    assert state.expiry(id) == pytest.approx(LEASE, abs=2)


def test_a_start_is_noted_for_the_lease_that_started(broker: Broker, state: State) -> None:
    id = state.seed("pending")
    (first,) = broker.claim(request()).leases
    broker.renew([Renewal(id, first.token, True)], lease=LEASE)
    assert state.task(id)["started"] == str(first.token)

    broker.release(id, first.token)
    (second,) = broker.claim(request()).leases
    broker.renew([Renewal(id, second.token, False)], lease=LEASE)

    assert state.task(id)["started"] == str(first.token)


def test_what_has_started_is_of_no_unknown_type(broker: Broker, state: State) -> None:
    started, waiting = (state.seed("processing", token=7, unknown_since=3_000) for _ in range(2))

    broker.renew([Renewal(started, 7, True), Renewal(waiting, 7, False)], lease=LEASE)

    assert ["unknown_at" in state.task(id) for id in (started, waiting)] == [False, True]


def test_more_than_a_call_takes_are_renewed(broker: Broker, state: State) -> None:
    ids = [state.seed("processing", token=7, lease=3) for _ in range(1_100)]

    words = broker.renew([Renewal(id, 7, True) for id in ids], lease=LEASE)

    assert words == ["ok"] * 1_100
    assert min(map(state.expiry, ids)) > 20
