"""The reminder: leaves wake-up tokens for queues with tasks, in case one was lost with a connection.

It sees every queue, so it also notes on the scoreboard how many tasks are pending.
"""

from __future__ import annotations

from prefork_q.broker import Broker
from prefork_q.ipc.scoreboard import RoleSlot

INTERVAL = 1.0
"""Seconds: what a lost token costs at most."""


class Reminder:
    name = "reminder"
    needs_redis = True

    def __init__(self, broker: Broker, slot: RoleSlot) -> None:
        self._broker = broker
        self._slot = slot
        self._cursor = 0
        self._pending = 0

    def run(self, now: float) -> float:
        reminded = self._broker.remind(self._cursor)
        self._pending += reminded.pending
        self._cursor = reminded.cursor
        if self._cursor:
            # Other chores first: whoever names queues may have named thousands.
            return now
        self._slot.pending, self._pending = self._pending, 0
        return now + INTERVAL
