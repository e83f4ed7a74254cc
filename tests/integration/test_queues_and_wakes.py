"""pause, resume, remind: who may be woken, and that a lost token costs a second at most."""

from __future__ import annotations

import pytest

from prefork_q.broker import Broker, Reminded
from tests.support.state import State, request


def test_a_paused_queue_keeps_its_tasks_and_gives_none(broker: Broker, state: State) -> None:
    id = state.seed("pending")

    assert broker.pause("default") == "ok"

    assert broker.claim(request()).leases == []
    assert state.pending() == [id]


def test_a_resumed_queue_is_claimed_from_again_and_wakes(broker: Broker, state: State) -> None:
    id = state.seed("pending")
    broker.pause("default")

    assert broker.resume("default") == "ok"

    assert state.wakes() == 1
    assert [lease.id.decode() for lease in broker.claim(request()).leases] == [id]


def test_a_resumed_queue_without_tasks_wakes_nobody(broker: Broker, state: State) -> None:
    state.seed("pending")
    broker.claim(request())
    broker.pause("default")

    broker.resume("default")

    assert state.wakes() == 0


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_a_queue_that_never_had_a_task_is_missing(broker: Broker, state: State, verb: str) -> None:
    assert getattr(broker, verb)("nowhere") == "missing"

    assert state.snapshot() == {}


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_the_same_call_again_answers_the_same_and_changes_nothing(
    broker: Broker, state: State, verb: str
) -> None:
    state.seed("pending")
    broker.pause("default")
    getattr(broker, verb)("default")
    before = state.snapshot()

    assert getattr(broker, verb)("default") == "ok"

    assert state.snapshot() == before


def test_every_queue_with_tasks_is_reminded_of_once(broker: Broker, state: State) -> None:
    for queue in ("full", "paused", "empty", "full"):
        state.seed("pending", queue=queue)
    broker.claim(request(queues=["empty"]))
    broker.pause("paused")

    assert broker.remind().queues == 1
    assert broker.remind().queues == 1

    assert [state.wakes(queue) for queue in ("full", "paused", "empty")] == [1, 0, 0]


def test_the_reminder_counts_what_waits_and_no_ghosts(broker: Broker, state: State) -> None:
    ids = [state.seed("pending", queue=queue) for queue in ("a", "a", "a", "b", "paused")]
    broker.cancel(ids[0])
    broker.pause("paused")

    assert broker.remind() == Reminded(queues=2, pending=4, cursor=0)


def test_what_is_no_list_is_reminded_of_so_that_a_claim_sets_it_aside(broker: Broker, state: State) -> None:
    state.seed("pending")
    broker.claim(request())
    state.put_in_place_of("pending:default")

    assert broker.remind().queues == 1

    broker.claim(request())
    assert broker.remind().queues == 0


def test_any_number_of_queues_is_reminded_of(broker: Broker, state: State) -> None:
    for n in range(1_500):
        state.seed("pending", queue=f"q{n}")

    first = broker.remind()
    assert first.queues < 1_500
    cursor = first.cursor
    while cursor:
        cursor = broker.remind(cursor).cursor

    assert {state.wakes(f"q{n}") for n in range(1_500)} == {1}
