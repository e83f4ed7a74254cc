"""Time for which the node did not run, because it was stopped or the machine slept, counts against no soft
time limit. Main thread.

The master says how much that was. It may be that this process runs again before the master has seen it, so
after a gap in its own turns a worker waits a moment before it believes its clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

GAP: Final = 2.5
"""Seconds between two turns; the loop sleeps a second at most. A handler that holds the interpreter does the
same to it, which is no reason to spare it."""
DOUBT: Final = 0.5
"""Seconds in which the master has certainly had a turn."""


class Standstill:
    """`total`: the seconds in all that the master has seen the node stand still."""

    def __init__(self, total: Callable[[], float], now: float) -> None:
        self._total = total
        self._seen = total()
        self._turned_at = now
        self.doubtful_until = 0.0
        """Boot time before which the clock is not believed."""

    def turned(self, now: float) -> float:
        """Note a turn; return the seconds for which the node stood still, if that was not told before."""
        if now - self._turned_at > GAP:
            self.doubtful_until = now + DOUBT
        self._turned_at = now
        before, self._seen = self._seen, self._total()
        return self._seen - before
