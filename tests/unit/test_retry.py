"""Retry: the wait before the next attempt grows, is spread, and never overflows."""

from __future__ import annotations

import math
import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefork_q.errors import ConfigurationError, RetryAfter
from prefork_q.retry import MAX_DELAY, Retry


class Fixed(random.Random):
    """Always draws the same number."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def random(self) -> float:
        return self.value


LEAST, MOST = Fixed(0.0), Fixed(1.0 - 2**-53)


def test_delays_double_up_to_the_cap() -> None:
    retry = Retry(base=1, factor=2, cap=10, jitter=0)

    delays = [retry.delay(attempt, LEAST) for attempt in range(1, 7)]

    assert delays == pytest.approx([1, 2, 4, 8, 10, 10])


def test_a_factor_of_one_waits_always_the_same() -> None:
    retry = Retry(base=3, factor=1, cap=10, jitter=0)

    assert [retry.delay(attempt, LEAST) for attempt in (1, 2, 50)] == pytest.approx([3, 3, 3])


def test_jitter_adds_up_to_its_share_and_takes_nothing_away() -> None:
    retry = Retry(base=10, factor=2, cap=100, jitter=0.2)

    assert retry.delay(1, LEAST) == pytest.approx(10)
    assert retry.delay(1, MOST) == pytest.approx(12)
    assert len({retry.delay(1, random.Random(seed)) for seed in range(20)}) == 20


def test_a_full_jitter_doubles_at_most() -> None:
    assert Retry(base=10, jitter=1.0).delay(1, MOST) == pytest.approx(20)


@pytest.mark.parametrize("policy", [Retry(base=0), Retry(cap=0)])
def test_without_a_wait_the_next_attempt_is_at_once(policy: Retry) -> None:
    assert policy.delay(5, MOST) == 0


def test_what_a_handler_asked_for_is_the_least_that_it_gets() -> None:
    retry = Retry(cap=5, jitter=0.5)

    assert retry.at_least(60, LEAST) == 60
    assert retry.at_least(60, MOST) == pytest.approx(90)
    assert retry.at_least(-3, MOST) == 0
    assert retry.at_least(math.inf, MOST) == MAX_DELAY


@pytest.mark.parametrize("attempt", [1_000, 10**6, 10**18])
def test_a_huge_attempt_is_the_cap(attempt: int) -> None:
    assert Retry(base=1, factor=1e6, cap=300, jitter=0).delay(attempt, LEAST) == 300


@given(
    base=st.floats(0, MAX_DELAY), factor=st.floats(1, 1e6), cap=st.floats(0, MAX_DELAY),
    jitter=st.floats(0, 10), attempt=st.integers(1, 10**9), seed=st.integers(),
)  # fmt: skip
def test_every_delay_is_within_its_bounds(
    base: float, factor: float, cap: float, jitter: float, attempt: int, seed: int
) -> None:
    retry = Retry(base=base, factor=factor, cap=cap, jitter=jitter)

    delay = retry.delay(attempt, random.Random(seed))

    least = min(base, cap)
    assert least * (1 - 1e-9) <= delay <= min(cap * (1 + jitter) * (1 + 1e-9), MAX_DELAY)


@pytest.mark.parametrize(
    "wrong",
    [
        {"base": -1}, {"factor": 0.5}, {"factor": math.inf}, {"cap": math.nan}, {"cap": MAX_DELAY * 2},
        {"jitter": -0.1}, {"jitter": 11}, {"base": "1"}, {"base": None},
    ],
)  # fmt: skip
def test_a_wrong_number_is_refused_by_name(wrong: dict[str, float]) -> None:
    (name,) = wrong

    with pytest.raises(ConfigurationError, match=name):
        Retry(**wrong)


@pytest.mark.parametrize("wrong", [ValueError, ("ValueError",), [ValueError], (int,), (ValueError(),)])
def test_what_is_never_retried_is_a_tuple_of_exceptions(wrong: Any) -> None:
    assert Retry(never=(ValueError, (KeyboardInterrupt, OSError), KeyError | TypeError)).never  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="as in never="):
        Retry(never=wrong)


def test_a_delay_that_is_asked_for_is_a_number_or_a_timedelta() -> None:
    assert RetryAfter(1.5).seconds == 1.5
    assert str(RetryAfter(timedelta(minutes=1))) == "retry after 60 s"
    with pytest.raises(TypeError, match="a number or a timedelta, not '60'"):
        RetryAfter("60", "later")  # type: ignore[arg-type]
