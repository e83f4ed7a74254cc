"""Busy is not deaf, and stopped is neither."""

from __future__ import annotations

import pytest

from prefork_q.master.health import SUSPICIOUS, condition, told


@pytest.mark.parametrize(
    ("silent", "runs", "is_stopped", "expected"),
    [
        (SUSPICIOUS - 0.1, False, False, "well"),
        (SUSPICIOUS + 0.1, False, False, "deaf"),
        (SUSPICIOUS + 0.1, True, False, "busy"),
        (1000.0, True, False, "busy"),
        (0.0, False, True, "stopped"),
        (1000.0, True, True, "stopped"),
    ],
)
def test_how_a_worker_is(silent: float, runs: bool, is_stopped: bool, expected: str) -> None:
    how = condition(last_beat=50.0, since=0.0, now=50.0 + silent, runs=runs, is_stopped=is_stopped)
    assert how == expected


def test_a_node_that_stood_still_holds_that_against_nobody() -> None:
    assert condition(last_beat=50.0, since=990.0, now=991.0, runs=False, is_stopped=False) == "well"


def test_only_what_needs_somebody_is_told() -> None:
    assert told("worker 3", "deaf", 16.2) == "worker 3: deaf, its fetch loop has not turned for 16 s"
    assert told("worker 3", "stopped", 0.0) == "worker 3: stopped (state T), continue it with SIGCONT"
    assert told("worker 3", "busy", 60.0) is None
    assert told("worker 3", "well", 0.0) is None
