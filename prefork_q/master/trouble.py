"""Tells once that processes die before they are ready, and once that they do so no more.

Each death has a line of its own, but the growing delay makes those rare; this one is for who looks for the
beginning and the end of it.
"""

from __future__ import annotations

from typing import Final

from prefork_q.events import Events
from prefork_q.master.children import Slots
from prefork_q.master.report import Report

OFTEN: Final = 2
"""Failures in a row that are a loop; one may be chance."""


class Trouble:
    """Looks each turn of the master's loop."""

    def __init__(self, report: Report, events: Events) -> None:
        self._report = report
        self._events = events
        self._is_told = False

    def look(self, slots: Slots) -> None:
        """Tell the change, if there is one."""
        failing = [place for place in slots.places() if place.is_failing and place.backoff.failures >= OFTEN]
        if failing and not self._is_told:
            self._is_told = True
            self._events.emit(
                "degraded", level="error", ready=self._ready(slots), reason=failing[0].last_cause,
                places=[place.name for place in failing[:20]],
            )  # fmt: skip
        elif self._is_told and not any(place.is_failing for place in slots.places()):
            self._is_told = False
            self._events.emit("recovered", ready=self._ready(slots))

    def _ready(self, slots: Slots) -> str:
        return f"{self._report.ready_workers}/{len(slots.workers)}"
