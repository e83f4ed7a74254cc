"""What a worker holds: its places in the scoreboard's table, what is unfinished, what it will cost."""

from __future__ import annotations

import random
from collections import deque

import pytest

from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.leases import Alike
from prefork_q.worker.held import Held, Outcome
from prefork_q.worker.holdings import MAX_BYTES, MAX_OUTCOMES, Holdings
from prefork_q.worker.pace import Paces
from prefork_q.worker.queues import QueueOrder

TABLE = 400


class Stand:
    def __init__(self) -> None:
        self.slot = Scoreboard(1, 1, TABLE).worker(0)
        self.paces = Paces()
        self.paces.learn(b"quick", 0.01)
        self.holdings = Holdings(self.slot, {}, QueueOrder(["default"], [None], random.Random()), self.paces)
        self.outbox: deque[Outcome] = deque()
        self._number = self._token = 0

    def take(self, n: int = 1, type: bytes = b"quick") -> list[Held]:
        tasks: list[object] = []
        for _ in range(n):
            self._number += 1
            tasks += (b"%036d" % self._number, b"{}", 250)
        self._token += 1
        return self.holdings.take([Alike(type, b"default", 1, 3, 0, 0, tasks)], self._token, 5.0, 6.0)

    def end(self, *helds: Held, size: int = 0) -> None:
        self.outbox.extend(Outcome(held, "succeeded", 0.1, b"x" * size) for held in helds)

    def commit(self) -> list[Outcome]:
        batch = self.holdings.take_batch(self.outbox)
        self.holdings.settle(batch)
        return batch


@pytest.fixture
def stand() -> Stand:
    return Stand()


def test_what_is_taken_stands_in_the_table_until_it_is_settled(stand: Stand) -> None:
    first, second = stand.take(2)
    assert [(held.id, held.token) for held in stand.slot.holds()] == [
        (first.id.decode(), 1), (second.id.decode(), 1),
    ]  # fmt: skip
    assert (len(stand.holdings), stand.holdings.unfinished) == (2, 2)

    stand.end(first)
    batch = stand.holdings.take_batch(stand.outbox)
    assert (len(stand.holdings), stand.holdings.unfinished) == (2, 1)
    assert len(stand.slot.holds()) == 2
    stand.holdings.settle(batch)

    assert (len(stand.holdings), stand.holdings.unfinished) == (1, 1)
    assert [held.id for held in stand.slot.holds()] == [second.id.decode()]


def test_places_are_used_again_and_none_leaks(stand: Stand) -> None:
    for _ in range(50):
        stand.end(*stand.take(TABLE // 2))
        while stand.outbox:
            stand.commit()

    assert stand.holdings.free == TABLE
    assert stand.slot.holds() == []
    assert all(held.index < TABLE // 2 for held in stand.take(TABLE // 2))


def test_of_each_task_the_first_outcome_counts(stand: Stand) -> None:
    first, second = stand.take(2)
    stand.end(first, first, second)
    batch = stand.commit()
    stand.end(first, second, second)

    assert [outcome.held for outcome in batch] == [first, second]
    assert stand.commit() == []
    assert not stand.outbox
    assert (len(stand.holdings), stand.holdings.unfinished, stand.holdings.free) == (0, 0, TABLE)


def test_cost_is_that_of_the_quick_tasks_which_are_not_finished(stand: Stand) -> None:
    quick, slow = stand.take(5), stand.take(3, b"slow")
    assert stand.holdings.cost == pytest.approx(0.05)

    stand.end(quick[0], slow[0])
    stand.holdings.take_batch(stand.outbox)

    # What is finished costs nothing any more, also while its commit is under way.
    assert stand.holdings.cost == pytest.approx(0.04)


def test_a_cost_is_given_back_as_it_was_taken_although_the_pace_has_changed(stand: Stand) -> None:
    helds = stand.take(4)
    stand.paces.learn(b"quick", 0.09, 50)
    helds += stand.take(1)
    stand.end(*helds[:4])

    stand.commit()

    assert stand.holdings.cost == pytest.approx(0.09, abs=0.001)


def test_rounding_does_not_add_up(stand: Stand) -> None:
    for _ in range(1_000):
        stand.paces.learn(b"quick", random.random() / 20)
        stand.end(*stand.take(3))
        stand.commit()

    assert stand.holdings.cost == 0.0


def test_a_batch_is_bounded_by_number(stand: Stand) -> None:
    stand.end(*stand.take(MAX_OUTCOMES + 10))

    assert [len(stand.commit()), len(stand.commit())] == [MAX_OUTCOMES, 10]


def test_a_batch_is_bounded_by_bytes_but_never_below_one_outcome(stand: Stand) -> None:
    first, second, third, fourth = stand.take(4)
    stand.end(first, size=2 * MAX_BYTES)
    stand.end(second, third, fourth, size=MAX_BYTES // 2)

    assert [[one.held for one in stand.commit()] for _ in range(3)] == [[first], [second, third], [fourth]]


def test_waits_are_observed(stand: Stand) -> None:
    stand.slot.register(["quick"], ["default"])

    stand.take(3)

    waits = stand.slot.snapshot().waits["default"]
    assert (waits.count, waits.sum) == (3, pytest.approx(0.75))
