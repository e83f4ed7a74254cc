"""Numbers that survive those who counted."""

from __future__ import annotations

from prefork_q.ipc import stats
from prefork_q.ipc.messages import Ended
from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.master.totals import Totals


def slot_with(completed: int, *, at: float = 100.0) -> WorkerSlot:
    slot = Scoreboard(slots=1, threads=1, held=1).worker(0)
    slot.open("node.0.1", generation=1)
    slot.register(["a"], ["q"])
    slot.add_for(0, stats.COMPLETED, completed)
    slot.observe_durations(0, [0.2])
    slot.observe_waits(0, [0.2])
    slot.tick(at, completed, 1)
    return slot


def test_totals_do_not_fall_when_a_worker_is_replaced() -> None:
    totals, slot = Totals(), slot_with(7)
    before = totals.plus([slot.snapshot()])
    totals.fold(slot.snapshot())
    slot.open("node.0.2", generation=1)
    after = totals.plus([slot.snapshot()])

    assert before.counters == after.counters
    assert after.counters[stats.COMPLETED] == 7
    assert before.types["a"] == after.types["a"]
    assert after.types["a"].counts[stats.COMPLETED] == 7
    assert before.waits["q"] == after.waits["q"]
    assert before.per_minute(110.0) == after.per_minute(110.0) == (7, 1)


def test_adding_the_living_changes_nothing_for_the_next_time() -> None:
    totals, slot = Totals(), slot_with(7)
    totals.plus([slot.snapshot()])
    assert totals.plus([slot.snapshot()]).counters[stats.COMPLETED] == 7


def test_types_of_different_order_are_added_by_name() -> None:
    totals = Totals()
    totals.fold(slot_with(1).snapshot())
    other = Scoreboard(slots=1, threads=1, held=1).worker(0)
    other.open("node.1.1", generation=2)
    other.register(["b", "a"], ["q"])
    other.add_for(1, stats.COMPLETED, 2)
    totals.fold(other.snapshot())
    assert totals.types["a"].counts[stats.COMPLETED] == 3
    assert totals.types["b"].counts[stats.COMPLETED] == 0


def test_a_minute_is_the_last_sixty_seconds() -> None:
    totals = Totals()
    totals.fold(slot_with(3, at=100.0).snapshot())
    totals.fold(slot_with(4, at=130.0).snapshot())
    assert totals.per_minute(130.5) == (7, 2)
    assert totals.per_minute(159.9) == (7, 2)
    assert totals.per_minute(161.0) == (4, 1)
    assert totals.per_minute(500.0) == (0, 0)
    assert len(totals.seconds) == 2
    totals.fold(slot_with(5, at=1_000.0).snapshot())
    assert list(totals.seconds) == [1000]


def test_what_the_status_shows_is_the_same_without_adding_all_up() -> None:
    totals, dead, living = Totals(), slot_with(3, at=100.0), slot_with(4, at=110.0)
    totals.fold(dead.snapshot())
    sums = totals.plus([living.numbers()])
    assert totals.counted([living.counters()]) == sums.counters
    assert totals.per_minute(120.0, living.seconds()) == sums.per_minute(120.0) == (7, 2)


def test_what_the_keeper_ended_counts_for_types_that_workers_know() -> None:
    totals, living = Totals(), slot_with(1)
    ended = [Ended("a", stats.DEAD, 2), Ended("made up", stats.DEAD, 3), Ended("a", stats.FAILED, 1)]

    totals.ended_by_keeper(ended, 100.5, living.type_names())

    sums = totals.plus([living.numbers()])
    assert sums.types["a"].counts == (1, 1, 0, 2)
    assert sums.types[stats.OTHER].counts == (0, 0, 0, 3)
    assert set(sums.types) == {"a", stats.OTHER}
    assert sums.per_minute(101.0) == (1, 2)
