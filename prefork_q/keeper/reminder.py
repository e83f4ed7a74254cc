"""The reminder: leaves wake-up tokens for queues with tasks, in case one was lost with a connection."""

from __future__ import annotations

from prefork_q.broker import Broker

INTERVAL = 1.0
"""Seconds: what a lost token costs at most."""


class Reminder:
    name = "reminder"
    needs_redis = True

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def run(self, now: float) -> float:
        self._broker.remind()
        return now + INTERVAL
