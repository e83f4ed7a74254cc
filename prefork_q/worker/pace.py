"""How long attempts of each type take, which decides what may be claimed ahead. Main thread only.

Only types that are fast are buffered, and only as much as starts within `HORIZON`: a task that
waits in this worker's buffer waits while another worker may be idle.
"""

from __future__ import annotations

import math

HORIZON = 0.1
"""Seconds. A type is fast if an attempt takes less, and no more is buffered than starts within it."""

WEIGHT = 0.3
"""Of the newest attempt in the moving average: three attempts move it two thirds of the way."""


class Paces:
    """Moving averages of the time that attempts take, by type, in seconds."""

    __slots__ = ("_averages", "_listed")

    def __init__(self) -> None:
        self._averages: dict[bytes, float] = {}
        self._listed: list[tuple[bytes, int]] | None = None

    def learn(self, type: bytes, seconds: float, n: int = 1) -> None:
        """Note that `n` attempts took `seconds` each, on average."""
        known = self._averages.get(type)
        if known is None:
            self._averages[type] = seconds
        else:
            self._averages[type] = known + (1 - (1 - WEIGHT) ** n) * (seconds - known)
        self._listed = None

    def cost(self, type: bytes) -> float:
        """Return the seconds that an attempt is expected to take; infinite unless known and fast."""
        average = self._averages.get(type)
        return average if average is not None and average < HORIZON else math.inf

    def fast(self) -> list[tuple[bytes, int]]:
        """Return the fast types with their paces in microseconds, at least 1."""
        if self._listed is None:
            self._listed = [
                (type, max(1, round(average * 1e6)))
                for type, average in self._averages.items()
                if average < HORIZON
            ]
        return self._listed
