"""For how long a worker claims nothing so that a suspect finds it idle. Pure."""

from __future__ import annotations

from typing import Final

SHORTEST: Final = 5.0
LONGEST: Final = 60.0
"""Seconds: the limit of one hold. It doubles each time that it runs out."""
PUT_OFF: Final = 4
"""A suspect that no hold has helped is put off for so many times as long, so that little of the time of a
worker's free threads is spent on it."""


class SuspectHold:
    """Begins when a suspect was given back because others run, and ends with the first of them.

    When it runs out instead, the worker claims again, and until one of the others ends each suspect that has
    to wait is put off: given back at once, it would be the next that is claimed, and what waits behind it
    would never be.
    """

    __slots__ = ("_delay", "_limit", "until")

    def __init__(self) -> None:
        self.until: float | None = None
        """Boot time at which it runs out, None while there is none."""
        self._limit = SHORTEST
        self._delay: float | None = None

    @property
    def is_on(self) -> bool:
        """Whether nothing is to be claimed."""
        return self.until is not None

    def begin(self, now: float) -> float | None:
        """A suspect has waited in vain; return the seconds to put it off for, None to hold instead."""
        if self._delay is None:
            self.until = now + self._limit
        return self._delay

    def runs_out(self, now: float) -> bool:
        """Whether it runs out at boot time `now`; true once."""
        if self.until is None or now < self.until:
            return False
        self.until = None
        self._delay = PUT_OFF * self._limit
        self._limit = min(2 * self._limit, LONGEST)
        return True

    def end(self) -> None:
        """One of the others has ended."""
        self.until = self._delay = None

    def found_place(self) -> None:
        """A suspect runs."""
        self._limit = SHORTEST
