"""When the master has to act."""

from __future__ import annotations

import pytest

from prefork_q.master.deadlines import TURN, Backoff, Deadline, Deadlines, OwnPace, Silence


def test_the_delay_grows_with_each_death_before_ready() -> None:
    backoff = Backoff()
    assert [backoff.died(was_ready=False) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_a_death_after_ready_is_made_good_at_once() -> None:
    backoff = Backoff()
    backoff.died(was_ready=False)
    backoff.died(was_ready=False)
    assert backoff.died(was_ready=True) == 0.0
    assert backoff.died(was_ready=False) == 0.5


def test_being_ready_forgets_earlier_failures() -> None:
    backoff = Backoff()
    backoff.died(was_ready=False)
    backoff.died(was_ready=False)
    backoff.worked()
    assert backoff.died(was_ready=False) == 0.5


def test_a_year_of_failures_does_not_overflow() -> None:
    backoff = Backoff(failures=10_000_000)
    assert backoff.died(was_ready=False) == 30


def test_the_earliest_deadline_is_next() -> None:
    deadlines = Deadlines()
    assert deadlines.next() is None
    deadlines.set("boot", "b", 20.0)
    deadlines.set("boot", "a", 10.0)
    assert deadlines.next() == 10.0
    assert deadlines.take_due(9.9) == []
    assert deadlines.take_due(20.0) == [Deadline("boot", "a"), Deadline("boot", "b")]
    assert deadlines.next() is None


def test_what_is_due_for_somebody_who_is_gone_is_forgotten() -> None:
    deadlines = Deadlines()
    deadlines.set("boot", "a", 10.0)
    deadlines.set("hung up", "a", 11.0)
    deadlines.set("boot", "b", 12.0)
    deadlines.drop("a")
    assert deadlines.take_due(100.0) == [Deadline("boot", "b")]


def test_time_that_the_node_stood_still_postpones_all() -> None:
    deadlines = Deadlines()
    deadlines.set("boot", "a", 10.0)
    deadlines.shift(60.0)
    assert deadlines.next() == 70.0


@pytest.mark.parametrize("pause", [0.001, TURN, 2 * TURN])
def test_ordinary_pauses_of_the_loop_are_no_standstill(pause: float) -> None:
    assert OwnPace(100.0).turned(100.0 + pause) == 0.0


def test_a_long_pause_is_a_standstill() -> None:
    pace = OwnPace(100.0)
    assert pace.turned(160.0) == 60.0 - TURN
    assert pace.turned(160.5) == 0.0


def test_silence_is_judged_from_the_last_beat() -> None:
    silence = Silence(limit=5.0)
    silence.restart(100.0)
    assert not silence.is_silent(0.0, 104.0)
    assert silence.is_silent(0.0, 106.0)
    assert not silence.is_silent(103.0, 107.0)
    assert silence.is_silent(103.0, 109.0)


def test_a_standstill_is_not_held_against_the_silent() -> None:
    silence = Silence(limit=5.0)
    silence.restart(100.0)
    silence.restart(1_000.0)
    assert not silence.is_silent(101.0, 1_004.0)
