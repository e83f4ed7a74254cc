"""How the node is, for the service manager, out of slots, scoreboard and report. No system calls."""

from __future__ import annotations

from typing import Any

from prefork_q.ipc import stats
from prefork_q.ipc.messages import RedisState
from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.master.children import WORKER, Child, Place, Slots
from prefork_q.master.health import condition
from prefork_q.master.herald import Vitals
from prefork_q.master.report import Report
from prefork_q.master.totals import Totals

MOST_TROUBLES = 3
"""A sentence is not a report."""
FRESH = 10.0
"""Seconds for which the keeper's last count of pending tasks is told."""


class CheckUp:
    """Looks at everything that the master knows of its node."""

    def __init__(self, slots: Slots, board: Scoreboard, totals: Totals, report: Report) -> None:
        self._slots = slots
        self._board = board
        self._totals = totals
        self._report = report

    def vitals(
        self,
        now: float,
        *,
        redis: RedisState | None,
        reload: dict[str, Any] | None,
        since: float,
        stops_until: float,
    ) -> Vitals:
        """Return how the node is at boot time `now`; until `since` it stood still."""
        workers = self._slots.children(WORKER)
        slots = [self._board.worker(child.cell) for child in workers if child.cell is not None]
        counters = self._totals.counted(slot.counters() for slot in slots)
        wanted, ready = len(self._slots.workers), self._report.ready_workers
        troubles = self._report.troubles(now, redis, reload)
        is_reachable = redis is not None and redis.reachable
        is_failing = any(place.is_failing for place in self._slots.places())
        return Vitals(
            ready=ready,
            wanted=wanted,
            running=sum(len(slot.running()) for slot in slots),
            ended=counters[stats.COMPLETED] + counters[stats.FAILED],
            pending=self._pending(now) if is_reachable else None,
            troubles=tuple(troubles[:MOST_TROUBLES]),
            is_sound=any(self._is_sound(child, now, since, is_reachable) for child in workers)
            or any(self._is_awaited(place) for place in self._slots.workers),
            may_go_on_starting=not (is_reachable and is_failing),
            stops_until=stops_until,
        )

    def _pending(self, now: float) -> int | None:
        keeper = self._board.keeper
        return keeper.pending if now - keeper.last_beat < FRESH else None

    def _is_sound(self, child: Child, now: float, since: float, is_redis_reachable: bool) -> bool:
        """A worker works if its loop turns or what runs may keep it from turning.

        Until Redis is back none becomes ready, and that is not the node's fault. Nor is it that an import or
        a start hook takes its time: that has a limit, after which this one has failed.
        """
        if child.killed_for is not None:
            return False
        if not child.is_ready and not child.stopping and child.place.backoff.failures == 0:
            return True
        if child.cell is None or child.pid is None:
            return False
        if not child.is_ready:
            return not is_redis_reachable
        slot = self._board.worker(child.cell)
        how = condition(
            last_beat=slot.last_beat,
            since=since,
            now=now,
            runs=bool(slot.running()),
            is_stopped=slot.is_stopped,
        )
        return how in ("well", "busy")

    def _is_awaited(self, place: Place) -> bool:
        """Whether a place that is vacant, after a worker that had worked, waits only for a template that
        imports: that has the same limit."""
        return place.is_vacant and place.backoff.failures == 0 and not self._slots.template.is_failing
