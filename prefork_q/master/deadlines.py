"""When the master has to act: deadlines, growing delays, and its own pace. Pure: no clock, no calls.

All times are boot time in seconds, given by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

TURN: Final = 1.0
"""Seconds. The loop turns at least so often, so that a longer pause shows that the node was stopped."""
FIRST_DELAY: Final = 0.5
LONGEST_DELAY: Final = 30.0
"""Seconds before the next birth in a place whose processes die before they are ready."""


class Deadline(NamedTuple):
    """What is due, and for whom (an incarnation)."""

    kind: str
    subject: str


class Deadlines:
    """A timetable of a few dozen entries."""

    def __init__(self) -> None:
        self._at: dict[Deadline, float] = {}

    def set(self, kind: str, subject: str, at: float) -> None:
        """Enter or move one."""
        self._at[Deadline(kind, subject)] = at

    def drop(self, subject: str, kind: str | None = None) -> None:
        """Forget those of this subject: of one kind, or all."""
        for deadline in [one for one in self._at if one.subject == subject and kind in (None, one.kind)]:
            del self._at[deadline]

    def next(self) -> float | None:
        """When the earliest is due; None if there is none."""
        return min(self._at.values(), default=None)

    def take_due(self, now: float) -> list[Deadline]:
        """Remove and return those that are due, the earliest first."""
        due = sorted((at, deadline) for deadline, at in self._at.items() if at <= now)
        for _, deadline in due:
            del self._at[deadline]
        return [deadline for _, deadline in due]

    def shift(self, seconds: float) -> None:
        """Postpone all: the node did not run for so long."""
        for deadline in self._at:
            self._at[deadline] += seconds


@dataclass(slots=True)
class Backoff:
    """The growing delay of a place whose processes die before they are ready."""

    first: float = FIRST_DELAY
    cap: float = LONGEST_DELAY
    failures: int = 0

    def died(self, *, was_ready: bool) -> float:
        """Return how long to wait before the next birth: not at all for who had been ready."""
        if was_ready:
            self.failures = 0
            return 0.0
        self.failures += 1
        # The exponent is bounded before the power is taken: after a year of failures too.
        return float(min(self.cap, self.first * 2 ** min(self.failures - 1, 30)))

    def worked(self) -> None:
        """A birth went well: the next failure begins anew."""
        self.failures = 0


class OwnPace:
    """Notices that the master itself did not run: it was stopped, or the machine slept."""

    def __init__(self, now: float, *, limit: float = 2.5 * TURN) -> None:
        self._last = now
        self._limit = limit

    def turned(self, now: float) -> float:
        """Note a turn of the loop. Return for how long the node stood still, 0 in ordinary life."""
        elapsed, self._last = now - self._last, now
        return elapsed - TURN if elapsed > self._limit else 0.0


class Silence:
    """Judges a process by its beats, and only over time during which the judge himself was awake."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since = 0.0

    def restart(self, now: float) -> None:
        """Judge from now on: a new process, or the node stood still."""
        self._since = now

    def is_silent(self, last_beat: float, now: float) -> bool:
        return now - max(last_beat, self._since) > self._limit
