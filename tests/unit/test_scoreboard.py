"""The scoreboard: what one process writes, another reads, dead or alive."""

from __future__ import annotations

import pytest

from prefork_q.ipc import stats
from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.ipc.slot import FINISHED, IDLE, RUNNING, WorkerSlot
from prefork_q.ipc.stats import BOUNDS, Histogram

ID = b"01987654-3210-7abc-8def-0123456789ab"
OTHER_ID = b"01987654-3210-7abc-8def-0123456789ac"


@pytest.fixture
def board() -> Scoreboard:
    return Scoreboard(slots=3, threads=2, held=4)


@pytest.fixture
def slot(board: Scoreboard) -> WorkerSlot:
    slot = board.worker(1)
    slot.open("node.1.7", generation=2)
    return slot


def test_a_processor_shows_what_it_runs(slot: WorkerSlot) -> None:
    slot.start(1, ID, b"thumbnail", 3, 1_764_000_000_000_001, 12.5, 42.5)

    (running,) = slot.running()
    assert (running.processor, running.id, running.type) == (1, ID.decode(), "thumbnail")
    assert (running.attempt, running.token) == (3, 1_764_000_000_000_001)
    assert (running.started_at, running.deadline) == (12.5, 42.5)
    assert slot.processor_state(1) == RUNNING
    assert slot.processor_state(0) == IDLE


def test_a_finished_task_runs_no_more(slot: WorkerSlot) -> None:
    slot.start(0, ID, b"t", 1, 5, 1.0, 0.0)
    slot.finished(0)
    assert slot.running() == []
    assert slot.processor_state(0) == FINISHED
    slot.idle(0)
    assert slot.processor_state(0) == IDLE


def test_names_that_are_too_long_are_cut(slot: WorkerSlot) -> None:
    slot.start(0, ID, b"x" * 300, 1, 5, 1.0, 0.0)
    (running,) = slot.running()
    assert running.type == "x" * 100
    assert running.token == 5


def test_a_held_entry_lives_until_it_is_dropped(slot: WorkerSlot) -> None:
    slot.hold(2, ID, 5, 10.0)
    (held,) = slot.holds()
    assert (held.index, held.id, held.token, held.claimed_at, held.renewed_at) == (
        2,
        ID.decode(),
        5,
        10.0,
        0.0,
    )
    assert slot.held_count() == 1
    slot.drop(2)
    assert slot.holds() == []
    assert slot.held_count() == 0


def test_a_renewal_moves_the_start_of_the_lease(slot: WorkerSlot) -> None:
    slot.hold(0, ID, 5, 10.0)
    assert slot.lease_started(0) == 10.0
    slot.renewed(0, 5, 20.0)
    assert slot.lease_started(0) == 20.0
    slot.renewed(0, 5, 30.0)
    assert slot.lease_started(0) == 30.0
    assert slot.holds()[0].renewed_at == 30.0


def test_words_about_an_earlier_claim_say_nothing_of_the_next_one(slot: WorkerSlot) -> None:
    slot.hold(0, ID, 5, 10.0)
    slot.renewed(0, 5, 20.0)
    slot.lost(0, 5)
    slot.cancel_requested(0, 5)
    slot.drop(0)
    slot.hold(0, OTHER_ID, 9, 12.0)

    assert slot.lease_started(0) == 12.0
    assert slot.is_lost(0, 5)
    assert not slot.is_lost(0, 9)
    assert not slot.is_cancel_requested(0, 9)
    assert slot.holds()[0].renewed_at == 0.0


def test_counters_are_kept_in_all_and_by_type(slot: WorkerSlot) -> None:
    slot.register(["a", "b"], ["default"])
    slot.add_for(0, stats.COMPLETED, 3)
    slot.add_for(1, stats.FAILED)
    slot.add_for(stats.MAX_TYPES - 1, stats.COMPLETED)
    slot.add(stats.STALE)

    shot = slot.snapshot()
    assert shot.counters[stats.COMPLETED] == 4
    assert shot.counters[stats.FAILED] == 1
    assert shot.counters[stats.STALE] == 1
    assert shot.types["a"].counts == (3, 0, 0, 0)
    assert shot.types["b"].counts == (0, 1, 0, 0)
    assert shot.types[stats.OTHER].counts == (1, 0, 0, 0)


def test_histograms_count_a_bound_in_its_own_bucket(slot: WorkerSlot) -> None:
    slot.register(["a"], ["q"])
    for seconds in (BOUNDS[0], BOUNDS[0] + 0.001, 10_000.0):
        slot.observe_durations(0, [seconds])
        slot.observe_waits(0, [seconds])

    shot = slot.snapshot()
    for histogram in (shot.types["a"].durations, shot.waits["q"]):
        assert histogram.buckets[:2] == (1, 1)
        assert histogram.buckets[-1] == 1
        assert histogram.count == 3
        assert histogram.sum == pytest.approx(10_000.011)
    assert (shot.waits["q"] + shot.waits["q"]).count == 6


def test_seconds_are_counted_apart_and_forgotten_after_a_turn_of_the_ring(slot: WorkerSlot) -> None:
    slot.tick(100.2, 1, 0)
    slot.tick(100.9, 2, 1)
    slot.tick(101.0, 4, 0)
    assert {(s.second, s.completed, s.failed) for s in slot.seconds()} == {(100, 3, 1), (101, 4, 0)}
    slot.tick(100.0 + stats.RING, 7, 0)
    assert {s.second for s in slot.seconds()} == {101, 100 + stats.RING}


def test_opening_a_slot_clears_it_and_no_neighbour(board: Scoreboard, slot: WorkerSlot) -> None:
    board.worker(0).add(stats.COMPLETED, 9)
    board.worker(2).hold(0, ID, 5, 1.0)
    slot.hold(3, ID, 5, 1.0)
    slot.start(1, ID, b"t", 1, 5, 1.0, 0.0)
    slot.register(["a"], ["q"])
    slot.add_for(0, stats.DEAD)

    slot.open("node.1.8", generation=3)

    shot = slot.snapshot()
    assert (shot.incarnation, shot.generation, shot.state, shot.pid) == ("node.1.8", 3, "starting", 0)
    assert shot.holds == ()
    assert shot.running == ()
    assert set(shot.counters) == {0}
    assert list(shot.types) == [stats.OTHER]
    assert board.worker(0).counter(stats.COMPLETED) == 9
    assert len(board.worker(2).holds()) == 1


def test_a_role_counts_on_after_its_process_was_replaced(board: Scoreboard) -> None:
    board.keeper.add(stats.LEASES_EXPIRED, 2)
    board.keeper.beat(5.0)
    board.keeper.add(stats.redis_error("timeout"))
    board.keeper.add(stats.redis_error("a kind that nobody knows"))
    assert board.keeper.last_beat == 5.0
    assert board.keeper.counters()[stats.LEASES_EXPIRED] == 2
    assert board.keeper.counters()[stats.redis_error("other")] == 1
    assert board.api(0).counters()[stats.LEASES_EXPIRED] == 0


def test_histograms_of_different_processes_add_up() -> None:
    one = Histogram((1,) + (0,) * (stats.BUCKETS - 1), 0.004)
    assert (one + one) == Histogram((2,) + (0,) * (stats.BUCKETS - 1), 0.008)


def test_a_type_or_queue_called_other_keeps_its_own_numbers() -> None:
    slot = Scoreboard(slots=1, threads=1, held=1).worker(0)
    slot.open("node.1.8", generation=3)
    slot.register(["other"], ["other"])
    slot.add_for(0, stats.COMPLETED, 3)

    assert slot.snapshot().types["other"].counts[stats.COMPLETED] == 3
    assert len(slot.snapshot().types) == len(slot.snapshot().waits) == 2
