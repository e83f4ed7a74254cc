"""Waiting in tests: for a condition, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

EVERY = 0.01
"""Seconds between two looks."""


def until(condition: Callable[[], T], timeout: float = 5.0, what: str = "", every: float = EVERY) -> T:
    """Call `condition` until what it returns is true, and return that.

    Args:
        timeout: seconds; the last look is made after they have passed.
        what: what was waited for, for the message.

    Raises:
        AssertionError: it did not come true in time. What `condition` raises is passed on.
    """
    deadline = time.monotonic() + timeout
    while True:
        is_last_look = time.monotonic() >= deadline
        value = condition()
        if value:
            return value
        if is_last_look:
            what = what or "its coming true"
            raise AssertionError(f"{timeout:g} s passed without {what}; last seen: {value!r}")
        time.sleep(every)
