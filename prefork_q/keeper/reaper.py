"""The reaper: puts tasks back whose lease has expired, whoever held it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from prefork_q.broker import Broker
from prefork_q.events import Events
from prefork_q.ipc import stats
from prefork_q.ipc.messages import Ended, LeasesExpired
from prefork_q.ipc.scoreboard import RoleSlot
from prefork_q.states import Status

BATCH = 500

OUTCOMES = {Status.PENDING: "released", Status.DEAD: "dead", Status.CANCELLED: "cancelled"}


class Reaper:
    """Reaps a batch a run. Its interval is jittered, so that the keepers of a fleet spread out.

    `tell` brings the master what it has ended, for the numbers of the types.
    """

    name = "reaper"
    needs_redis = True

    def __init__(
        self,
        broker: Broker,
        tell: Callable[[LeasesExpired], None],
        events: Events,
        slot: RoleSlot,
        *,
        lease: float,
    ) -> None:
        self._broker = broker
        self._tell = tell
        self._events = events
        self._slot = slot
        self._lease = lease
        self._interval = min(1.0, lease / 6)
        self._is_holding = False

    def run(self, now: float) -> float:
        reaped = self._broker.reap(lease=self._lease, limit=BATCH)
        self._tell_of_holding(reaped.is_holding)
        self._slot.add(stats.LEASES_EXPIRED, len(reaped.expired))
        self._slot.add(stats.CANCELLED, sum(one.status is Status.CANCELLED for one in reaped.expired))
        dead = Counter(one.type for one in reaped.expired if one.status is Status.DEAD)
        if dead:
            self._slot.add(stats.DEAD, dead.total())
            self._tell(LeasesExpired(tuple(Ended(type, stats.DEAD, n) for type, n in dead.items())))
        for one in reaped.expired:
            self._events.emit(
                "lease_expired", level="error" if one.status is Status.DEAD else "warning",
                id=one.id, type=one.type, queue=one.queue, attempt=one.attempt, outcome=OUTCOMES[one.status],
                losses=one.losses, error_type="LeaseLost" if one.status is Status.DEAD else None,
            )  # fmt: skip
        if len(reaped.expired) >= BATCH:
            return now
        return now + self._interval * random.uniform(0.8, 1.2)

    def _tell_of_holding(self, is_holding: bool) -> None:
        if is_holding and not self._is_holding:
            self._events.emit("reaping_held_off", level="debug", reason="no keeper was heard of for a while")
        self._is_holding = is_holding
