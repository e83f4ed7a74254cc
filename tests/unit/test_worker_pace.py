"""Which types are quick: a moving average of what their attempts took."""

from __future__ import annotations

import pytest

from prefork_q.worker.pace import HORIZON, Paces


def test_a_type_is_not_quick_before_it_was_measured() -> None:
    paces = Paces()

    assert paces.fast() == []
    assert paces.costs == {}


def test_a_quick_type_is_listed_with_its_pace() -> None:
    paces = Paces()

    paces.learn(b"t", 0.0123)

    assert paces.fast() == [(b"t", 12_300)]
    assert paces.costs == {b"t": 0.0123}


def test_a_pace_is_never_nothing() -> None:
    paces = Paces()

    paces.learn(b"t", 0.0)

    assert paces.fast() == [(b"t", 1)]


@pytest.mark.parametrize("seconds", [HORIZON, 1.0, 3_600.0])
def test_a_slow_type_is_not_listed(seconds: float) -> None:
    paces = Paces()

    paces.learn(b"t", seconds)

    assert (paces.fast(), paces.costs) == ([], {})


def test_a_quick_type_that_slows_down_is_not_listed_any_more_and_comes_back() -> None:
    paces = Paces()
    paces.learn(b"t", 0.001)
    paces.learn(b"t", 0.5)
    assert (paces.fast(), paces.costs) == ([], {})

    for _ in range(6):
        paces.learn(b"t", 0.001)

    assert len(paces.fast()) == len(paces.costs) == 1


def test_many_attempts_at_once_weigh_as_much_as_one_by_one() -> None:
    together, singly = Paces(), Paces()
    for paces in (together, singly):
        paces.learn(b"t", 0.05)

    together.learn(b"t", 0.01, 20)
    for _ in range(20):
        singly.learn(b"t", 0.01)

    assert together.costs[b"t"] == pytest.approx(singly.costs[b"t"])


def test_the_list_is_made_anew_only_when_something_was_learnt() -> None:
    paces = Paces()
    paces.learn(b"t", 0.01)

    assert paces.fast() is paces.fast()
    before = paces.fast()
    paces.learn(b"u", 0.01)
    assert paces.fast() is not before
