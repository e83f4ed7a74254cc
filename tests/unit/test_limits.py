"""Hard time limits: who is due when, and what the verdict is after the death."""

from __future__ import annotations

from prefork_q.ipc.messages import TimedOut
from prefork_q.ipc.stats import Running
from prefork_q.master.limits import LEAD, LOOK, MAX_PAUSES, HardLimits, Pauses, Verdict, timed_out

A, B = (f"01987654-3210-7abc-8def-00000000000{n}" for n in "ab")


def run(processor: int, id: str, deadline: float, token: int = 7, delay: float | None = None) -> Running:
    return Running(processor, id, "t", 1, token, started_at=100.0, deadline=deadline, delay=delay)


def test_what_has_no_limit_is_never_due() -> None:
    limits = HardLimits(Pauses())
    limits.begin_look(1e6)
    assert limits.look([run(0, A, 0.0)], 1e6) == (False, [])
    assert limits.next_look == 1e6 + LOOK


def test_a_deadline_is_looked_at_a_little_before_it_and_when_it_has_come() -> None:
    limits, running = HardLimits(Pauses()), [run(0, A, 110.0), run(1, B, 500.0)]

    limits.begin_look(109.0)
    assert limits.look(running, 109.0) == (False, [])
    assert limits.next_look == 110.0 - LEAD
    limits.begin_look(109.8)
    assert limits.look(running, 109.8) == (True, [])
    assert limits.next_look == 110.0
    limits.begin_look(110.0)
    assert limits.look(running, 110.0) == (False, [Verdict(0, A, 7)])


def test_time_for_which_the_node_stood_still_is_added() -> None:
    pauses = Pauses()
    limits = HardLimits(pauses)
    pauses.add(99.0, 50.0)
    pauses.add(130.0, 20.0)

    assert limits.look([run(0, A, 110.0)], 129.0) == (False, [])
    assert limits.look([run(0, A, 110.0)], 130.0) == (False, [Verdict(0, A, 7)])


def test_many_pauses_are_kept_as_sums() -> None:
    pauses = Pauses()
    for n in range(2 * MAX_PAUSES):
        pauses.add(float(n), 1.0)
    assert pauses.since(-1.0) == 2 * MAX_PAUSES
    assert pauses.since(2 * MAX_PAUSES - 11.0) == 10


def test_only_what_the_slot_still_shows_is_timed_out() -> None:
    verdicts = [Verdict(0, A, 7), Verdict(1, B, 8)]
    afterwards = [run(0, A, 102.5, delay=3.0), run(1, B, 0.0, token=9)]

    assert timed_out(verdicts, afterwards, {0: "in spin"}) == (TimedOut(A, 7, 2.5, 3.0, "in spin"),)
    assert timed_out(verdicts, [], {}) == ()
