"""An outage of Redis, as one process sees it: when to try again, and two lines in the log.

Used by one thread.
"""

from __future__ import annotations

import random
import time

from prefork_q.errors import Unavailable
from prefork_q.events import Events

FIRST_DELAY = 0.05
"""Seconds before the second try; doubled each time, with jitter, so that a node's processes do not meet."""


class Outage:
    """Counts failures in a row. The first one and the recovery make a line, what lies between none.

    `cap` is the longest delay between two tries, in seconds.
    """

    def __init__(self, events: Events, *, cap: float = 2.0, rng: random.Random | None = None) -> None:
        self._events = events
        self._cap = cap
        self._rng = rng or random.Random()
        self._failures = 0
        self._began = 0.0

    @property
    def is_on(self) -> bool:
        return self._failures > 0

    def failed(self, error: Unavailable) -> float:
        """Note a failure; return the seconds to wait before the next try."""
        if self._failures == 0:
            self._began = time.monotonic()
            self._events.emit("redis_lost", level="error", kind=error.kind, error=str(error))
        self._failures += 1
        delay = min(self._cap, FIRST_DELAY * 2.0 ** min(self._failures - 1, 16))
        return max(delay * (0.5 + self._rng.random()), 0.0)

    def ended(self) -> None:
        """Note that Redis answered."""
        if self._failures:
            away = time.monotonic() - self._began
            self._events.emit("redis_found", away_s=round(away, 3))
            self._failures = 0
