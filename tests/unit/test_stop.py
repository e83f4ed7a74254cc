"""The timetable of a stop."""

from __future__ import annotations

import pytest

from prefork_q.master.stop import StopPlan


@pytest.mark.parametrize("timeout", [0.0, 0.5, 3.0, 30.0])
def test_all_is_over_within_the_drain_timeout_and_a_second(timeout: float) -> None:
    plan = StopPlan.drain(100.0, timeout)
    assert plan.template_until <= plan.keeper_until
    assert plan.workers_until == 100.0 + timeout
    assert plan.workers_until < plan.keeper_until < plan.store_until <= 100.0 + timeout + 0.8
    assert plan.api_until <= plan.keeper_until


def test_workers_are_told_a_little_less_than_they_have() -> None:
    plan = StopPlan.drain(100.0, 3.0)
    assert 2.5 < plan.worker_seconds(100.0) < 3.0
    assert StopPlan.drain(100.0, 0.0).worker_seconds(100.0) == 0.0


def test_a_second_request_shortens_the_stop_to_nothing() -> None:
    plan = StopPlan.drain(100.0, 30.0).hurried(105.0)
    assert plan.workers_until == 105.0
    assert plan.store_until < 106.0
    assert plan.began_at == 100.0


def test_a_second_request_never_lengthens_it() -> None:
    plan = StopPlan.drain(100.0, 1.0)
    assert plan.hurried(101.9) == plan


def test_the_next_step_is_the_earliest_that_is_left() -> None:
    plan = StopPlan.drain(100.0, 3.0)
    assert plan.next(100.0) == plan.template_until
    assert plan.next(101.0) == plan.workers_until
    assert 200.0 < plan.next(200.0) < 200.5
