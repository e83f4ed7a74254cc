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


class Backoff:
    """Delays between tries that fail: doubled each time, up to `cap` seconds, with jitter."""

    def __init__(self, *, cap: float = 2.0, rng: random.Random | None = None) -> None:
        self._cap = cap
        self._rng = rng or random.Random()
        self.failures = 0
        """In a row."""

    def failed(self) -> float:
        """Note a failure; return the seconds to wait before the next try."""
        delay = min(self._cap, FIRST_DELAY * 2.0 ** min(self.failures, 16))
        self.failures += 1
        return delay * (0.5 + self._rng.random())

    def worked(self) -> None:
        self.failures = 0


class Outage:
    """Counts failures in a row. The first one and the recovery make a line, what lies between none.

    `cap` is the longest delay between two tries, in seconds.
    """

    def __init__(self, events: Events, *, cap: float = 2.0, rng: random.Random | None = None) -> None:
        self._events = events
        self._backoff = Backoff(cap=cap, rng=rng)
        self._began = 0.0

    @property
    def is_on(self) -> bool:
        return self._backoff.failures > 0

    def failed(self, error: Unavailable) -> float:
        """Note a failure; return the seconds to wait before the next try."""
        if not self.is_on:
            self._began = time.monotonic()
            self._events.emit("redis_lost", level="error", kind=error.kind, error=str(error))
        return self._backoff.failed()

    def ended(self) -> None:
        """Note that Redis answered."""
        if self.is_on:
            away = time.monotonic() - self._began
            self._events.emit("redis_found", away_s=round(away, 3))
            self._backoff.worked()
