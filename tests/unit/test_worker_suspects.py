"""How long a worker stays free for a suspect."""

from __future__ import annotations

from prefork_q.worker.suspects import LONGEST, PUT_OFF, SHORTEST, SuspectHold


def test_a_hold_ends_with_the_first_of_the_others() -> None:
    hold = SuspectHold()
    assert hold.begin(100.0) is None
    assert hold.is_on
    hold.end()
    assert not hold.is_on
    assert not hold.runs_out(1_000.0)
    assert hold.begin(1_000.0) is None


def test_one_that_has_run_out_puts_off_all_until_one_of_the_others_ends() -> None:
    hold = SuspectHold()
    hold.begin(100.0)
    assert not hold.runs_out(100.0 + SHORTEST - 0.1)
    assert hold.runs_out(100.0 + SHORTEST)
    assert not hold.runs_out(100.0 + SHORTEST)
    assert not hold.is_on
    assert [hold.begin(110.0), hold.begin(111.0)] == [PUT_OFF * SHORTEST] * 2
    assert not hold.is_on
    hold.end()
    assert hold.begin(112.0) is None
    assert hold.until == 112.0 + 2 * SHORTEST


def test_it_grows_to_its_longest_until_a_suspect_runs() -> None:
    hold, lengths = SuspectHold(), []
    for _ in range(6):
        hold.begin(0.0)
        assert hold.until is not None
        lengths.append(hold.until)
        assert hold.runs_out(hold.until)
        hold.end()
    assert lengths == [5.0, 10.0, 20.0, 40.0, LONGEST, LONGEST]
    hold.found_place()
    hold.begin(0.0)
    assert hold.until == SHORTEST
