"""commit: outcomes and a claim in one call, with the same words as each alone; settle: outcomes alone."""

from __future__ import annotations

import pytest

from prefork_q.broker import Broker
from prefork_q.leases import Settlement
from prefork_q.states import Status
from tests.support.state import LEASE, State, request


def test_outcomes_are_carried_out_and_the_room_is_filled(broker: Broker, state: State) -> None:
    done, failed, back, lost = (state.seed("processing", token=7) for _ in range(4))
    new = [state.seed("pending") for _ in range(3)]

    words, claimed = broker.commit(
        [
            Settlement("complete", done.encode(), 7, 5, b"1"),
            Settlement("fail", failed.encode(), 7, 5, b"{}", 60_000),
            Settlement("complete", lost.encode(), 6, 5, b"1"),
            Settlement("release", back.encode(), 7),
        ],
        request(room=3),
    )

    assert words == ["ok", "ok", "stale", "ok"]
    # What was released is the head of the queue again before the claim looks there.
    assert [lease.id.decode() for lease in claimed.leases] == [back, *new[:2]]
    assert [state.status(id) for id in (done, failed, lost)] == [
        Status.SUCCEEDED, Status.DELAYED, Status.PROCESSING,
    ]  # fmt: skip
    assert (state.total("completed"), state.total("failed"), state.total("released")) == (1, 1, 1)


@pytest.mark.parametrize("results", [["1", "2", "3"], ["null"] * 3, ["1", "1", "2"], ["5"]])
def test_each_task_gets_its_own_result_and_time(broker: Broker, state: State, results: list[str]) -> None:
    ids = [state.seed("processing", token=7) for _ in results]
    other = state.seed("processing", token=8)
    outcomes = [
        Settlement("complete", id.encode(), 7, 1_000 * (n + 1), result.encode())
        for n, (id, result) in enumerate(zip(ids, results, strict=True))
    ]

    broker.commit([*outcomes, Settlement("complete", other.encode(), 8, 9_000, b'"other"')], request())

    found = [state.task(id) for id in (*ids, other)]
    assert [task["result"] for task in found] == [*results, '"other"']
    times = [1_000 * (n + 1) for n in range(len(ids))] + [9_000]
    assert [int(task["finished_at"]) - int(task["started_at"]) for task in found] == times


def test_the_same_commit_again_answers_the_same_and_changes_nothing(broker: Broker, state: State) -> None:
    done, failed = (state.seed("processing", token=7) for _ in range(2))
    for _ in range(3):
        state.seed("pending")
    outcomes = [
        Settlement("complete", done.encode(), 7, 5, b"1"),
        Settlement("fail", failed.encode(), 7, 5, b"{}", 60_000),
    ]
    call = request(room=2)
    words, claimed = broker.commit(outcomes, call)
    before = state.snapshot()

    again_words, again = broker.commit(outcomes, call)

    assert again_words == words
    assert [lease.id for lease in again.leases] == [lease.id for lease in claimed.leases]
    assert state.snapshot() == before


def test_without_outcomes_it_is_a_claim(broker: Broker, state: State) -> None:
    id = state.seed("pending")

    words, claimed = broker.commit([], request())

    assert words == []
    assert [lease.id.decode() for lease in claimed.leases] == [id]


def test_without_room_it_is_a_settle(broker: Broker, state: State) -> None:
    done = state.seed("processing", token=7)
    state.seed("pending")

    words, claimed = broker.commit([Settlement("complete", done.encode(), 7, 5, b"1")], request(room=0))

    assert (words, claimed.leases) == (["ok"], [])
    assert state.wakes() == 1


def test_the_outcomes_of_a_worker_that_was_given_up_are_stale(broker: Broker, state: State) -> None:
    state.seed("pending")
    (lease,) = broker.claim(request("node.0.7")).leases
    broker.hand_back("node.0.7", [], lease=LEASE)
    before = state.snapshot()

    words, claimed = broker.commit(
        [Settlement("complete", lease.id, lease.token, 5, b"1")], request("node.0.7")
    )

    assert (words, claimed.is_gone) == (["stale"], True)
    assert state.snapshot() == before


def test_a_full_commit_works(broker: Broker, state: State) -> None:
    for _ in range(2_000):
        state.seed("pending")
    leases = broker.claim(request(room=1_000)).leases
    outcomes = [Settlement("complete", lease.id, lease.token, 5, b"1") for lease in leases]

    words, claimed = broker.commit(outcomes, request(room=1_000))

    assert words == ["ok"] * 1_000
    assert len(claimed.leases) == 1_000


@pytest.mark.parametrize("verb", ["complete", "fail", "release"])
def test_a_full_settle_of_one_verb_works(broker: Broker, state: State, verb: str) -> None:
    ids = [state.seed("processing", token=7) for _ in range(1_000)]
    delay = 5_000 if verb == "fail" else ""

    assert broker.settle([Settlement(verb, id.encode(), 7, 5, b"1", delay) for id in ids]) == ["ok"] * 1_000


def test_settle_answers_in_the_order_of_its_outcomes(broker: Broker, state: State) -> None:
    done, failed, back = (state.seed("processing", token=7) for _ in range(3))

    words = broker.settle([
        Settlement("release", back.encode(), 7),
        Settlement("complete", done.encode(), 6, 5, b"1"),
        Settlement("fail", failed.encode(), 7, 5, b"{}", ""),
        Settlement("complete", done.encode(), 7, 5, b"1"),
    ])  # fmt: skip

    assert words == ["ok", "stale", "ok", "ok"]


def test_nothing_to_settle_is_no_call(broker: Broker, state: State) -> None:
    assert broker.settle([]) == []
