"""What running handlers say of how far they are: the newest report of each, written now and then."""

from __future__ import annotations

from typing import Final

import orjson

from prefork_q.worker.held import Held

INTERVAL: Final = 0.5
"""Seconds between two calls that write reports."""


class Reports:
    """Handlers' threads add, the main thread takes."""

    def __init__(self) -> None:
        self._newest: dict[Held, tuple[float, str]] = {}
        self._taken_at = 0.0

    def add(self, held: Held, fraction: float, note: str) -> None:
        """Note a report, in the place of an earlier one. From any thread."""
        self._newest[held] = (fraction, note)

    def due_at(self) -> float | None:
        """Return the boot time from which reports are to be written, None if there are none."""
        return self._taken_at + INTERVAL if self._newest else None

    def take(self, now: float) -> list[object]:
        """Return the arguments of `progress` for all that was reported since the last time."""
        self._taken_at = now
        arguments: list[object] = []
        # Taken one by one: handlers add more at any moment.
        while self._newest:
            held, (fraction, note) = self._newest.popitem()
            if not held.is_over:
                text = orjson.dumps({"fraction": fraction, "note": note})
                arguments += (held.id, held.lot.token, text)
        return arguments
