"""cancel: what has not ended ends; a pending one stays listed as a ghost, a running one is asked to stop."""

from __future__ import annotations

import pytest

from prefork_q.broker import Broker
from prefork_q.states import Status
from tests.support.state import State, request


def test_a_pending_task_is_a_ghost_until_it_is_dropped(broker: Broker, state: State) -> None:
    id, other = state.seed("pending", idempotency_key="k"), state.seed("pending")

    assert broker.cancel(id) == "cancelled"

    assert state.status(id) is Status.CANCELLED
    assert state.body(id) is None
    assert state.pending() == [id, other]
    assert state.lifetimes(id, "k") == [None, None]
    assert state.ids("recent") == [id]
    assert state.total("cancelled") == 1
    state.assert_sums()

    assert [lease.id.decode() for lease in broker.claim(request(room=5)).leases] == [other]
    assert state.lifetimes(id, "k") == pytest.approx([86_400] * 2, abs=5)


def test_a_delayed_task_is_cancelled_at_once(broker: Broker, state: State) -> None:
    id = state.seed("delayed", idempotency_key="k")

    assert broker.cancel(id) == "cancelled"

    assert state.status(id) is Status.CANCELLED
    assert state.ids("delayed") == []
    assert state.lifetimes(id, "k") == pytest.approx([86_400] * 2, abs=5)


def test_a_running_task_is_asked_to_stop(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7)

    assert broker.cancel(id) == "requested"

    assert state.status(id) is Status.PROCESSING
    assert state.task(id)["cancel"] == "1"
    assert state.ids("cancels") == [id]
    assert state.total("cancelled") == 0


@pytest.mark.parametrize("status", ["succeeded", "dead"])
def test_what_has_ended_stays_as_it_is(broker: Broker, state: State, status: str) -> None:
    id = state.seed(status)
    before = state.snapshot()

    assert broker.cancel(id) == "ended"

    assert state.snapshot() == before


@pytest.mark.parametrize("status", ["pending", "delayed", "processing", "cancelled"])
def test_the_same_call_again_answers_the_same_and_changes_nothing(
    broker: Broker, state: State, status: str
) -> None:
    id = state.seed(status, token=7)
    word = broker.cancel(id)
    before = state.snapshot()

    assert broker.cancel(id) == word

    assert state.snapshot() == before


def test_an_unknown_or_unreadable_task_is_missing(broker: Broker, state: State) -> None:
    state.put_in_place_of("task:bad")
    before = state.snapshot()

    assert (broker.cancel("nobody"), broker.cancel("bad")) == ("missing", "missing")

    assert state.snapshot() == before
    state.lose("task:bad")


def test_the_list_of_requests_is_bounded(broker: Broker, state: State) -> None:
    ids = [state.seed("processing", token=7) for _ in range(1_010)]

    for id in ids:
        broker.cancel(id)

    assert len(state.ids("cancels")) == 1_000
