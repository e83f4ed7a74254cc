"""The auditor: finds tasks that are called processing and have no lease, and gives them one.

That cannot come about by itself, only in a store that was edited or restored in part; nobody would ever
look at such a task again.
"""

from __future__ import annotations

import random

from prefork_q.broker import Broker
from prefork_q.events import Events

BATCH = 500
INTERVAL = 10.0
"""Seconds between two audits."""


class Auditor:
    """Looks at a part of the workers' last claims a run."""

    name = "auditor"
    needs_redis = True

    def __init__(self, broker: Broker, events: Events, *, lease: float) -> None:
        self._broker = broker
        self._events = events
        self._lease = lease
        self._start = 0

    def run(self, now: float) -> float:
        self._start, found = self._broker.audit(lease=self._lease, start=self._start, limit=BATCH)
        for one in found:
            self._events.emit(
                "lease_missing", level="error", id=one.id, type=one.type, claimed_by=one.worker,
                cause="it was called processing and had no lease; it has one again",
            )  # fmt: skip
        return now if self._start else now + INTERVAL * random.uniform(0.8, 1.2)
