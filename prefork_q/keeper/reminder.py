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

    def run(self, now: float) -> float:
        self._slot.pending = self._broker.remind().pending
        return now + INTERVAL
