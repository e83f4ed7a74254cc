"""How long attempts of each type take, which decides what may be claimed ahead. Main thread only.

Only types that are fast are buffered, and only as much as starts within `HORIZON`: a task that
waits in this worker's buffer waits while another worker may be idle.
"""

from __future__ import annotations

from typing import Final

HORIZON: Final = 0.1
"""Seconds. A type is fast if an attempt takes less, and no more is buffered than starts within it."""

WEIGHT: Final = 0.3
"""Of the newest attempt in the moving average: three attempts move it two thirds of the way."""


class Paces:
    """Moving averages of the time that attempts take, by type, in seconds."""

    __slots__ = ("_averages", "_listed", "costs")

    def __init__(self) -> None:
        self._averages: dict[bytes, float] = {}
        self._listed: list[tuple[bytes, int]] | None = None
        self.costs: dict[bytes, float] = {}
        """The seconds that an attempt is expected to take, of the fast types only."""

    def learn(self, type: bytes, seconds: float, n: int = 1) -> None:
        """Note that `n` attempts took `seconds` each, on average."""
        average = self._averages.get(type)
        if average is None:
            average = seconds
        else:
            average += (1 - (1 - WEIGHT) ** n) * (seconds - average)
        self._averages[type] = average
        if average < HORIZON:
            self.costs[type] = average
        else:
            self.costs.pop(type, None)
        self._listed = None

    def fast(self) -> list[tuple[bytes, int]]:
        """Return the fast types with their paces in microseconds, at least 1."""
        if self._listed is None:
            self._listed = [(type, max(1, round(cost * 1e6))) for type, cost in self.costs.items()]
        return self._listed
