"""The pruner: deletes the oldest dead tasks beyond their number and age."""

from __future__ import annotations

from prefork_q.broker import Broker
from prefork_q.events import Events
from prefork_q.ipc import stats
from prefork_q.ipc.scoreboard import RoleSlot

BATCH = 250
"""Tasks in a call: to find and free one that nobody looked at for months costs more than others' scripts."""
INTERVAL = 60.0
"""Seconds between two looks when nothing is over the limits."""


class Pruner:
    """Trims a batch a run, so that what is due beside it runs in between."""

    name = "pruner"
    needs_redis = True

    def __init__(
        self, broker: Broker, events: Events, slot: RoleSlot, *, dead_limit: int, dead_retention: float
    ) -> None:
        self._broker = broker
        self._events = events
        self._slot = slot
        self._dead_limit = dead_limit
        self._dead_retention = dead_retention
        self._trimmed = 0

    def run(self, now: float) -> float:
        trimmed = self._broker.trim(
            dead_limit=self._dead_limit, dead_retention=self._dead_retention, limit=BATCH
        )
        self._slot.add(stats.TRIMMED, trimmed)
        self._trimmed += trimmed
        if trimmed >= BATCH:
            return now
        if self._trimmed:
            self._events.emit("dead_trimmed", level="warning", tasks=self._trimmed, limit=self._dead_limit)
            self._trimmed = 0
        return now + INTERVAL
