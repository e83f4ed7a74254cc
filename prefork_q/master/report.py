"""What the master tells about the node: the status, and the numbers for the metrics. No system calls."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import Any, TypeVar

import psutil

from prefork_q.ipc import stats
from prefork_q.ipc.messages import RedisState
from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.ipc.stats import Histogram, TypeStats
from prefork_q.master.children import WORKER, Child, Place, Slots
from prefork_q.master.health import Condition, condition, told
from prefork_q.master.settings import MasterSettings
from prefork_q.master.totals import Totals
from prefork_q.units import timestamp

N = TypeVar("N", TypeStats, Histogram)


class Report:
    """Reads slots, scoreboard and totals; every value that it returns is plain JSON."""

    def __init__(
        self,
        settings: MasterSettings,
        slots: Slots,
        board: Scoreboard,
        totals: Totals,
        *,
        pid: int,
        now: float,
    ) -> None:
        self._settings = settings
        self._slots = slots
        self._board = board
        self._folded = totals
        self._pid = pid
        self._began_at = now
        self._judged_since = 0.0

    def stood_still(self, now: float) -> None:
        """The node did not run until now: workers are judged from here on."""
        self._judged_since = now

    def status(
        self,
        now: float,
        *,
        state: str,
        generation: int,
        redis: RedisState | None,
        reload: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return `ctl status --json`; `reload` is what is known of the last one."""
        stops = state == "draining"
        roles: dict[str, Any] = {
            "template": _role(self._slots.template, stops=stops),
            "keeper": _role(self._slots.keeper, stops=stops),
        }
        if self._slots.store is not None:
            roles["store"] = _role(self._slots.store, stops=stops)
        roles["api"] = [_role(place, stops=stops) for place in self._slots.apis]
        return {
            "version": self._settings.version,
            "pid": self._pid,
            "node": self._settings.node,
            "state": state,
            "uptime_s": round(now - self._began_at, 3),
            "generation": generation,
            "lease_s": self._settings.lease,
            "degraded": [] if stops else self.degraded(now, redis, reload),
            "workers": self.workers(now, stops=stops),
            "leaving": self.leaving(now),
            "reload": reload,
            "roles": roles,
            "redis": {
                "reachable": redis is not None and redis.reachable,
                "version": redis.version if redis else None,
                "warning": redis.warning if redis else None,
            },
            "totals": self._totals(now),
        }

    @property
    def ready_workers(self) -> int:
        """How many take tasks: one that drains of its own accord does not."""
        return sum(_state(self._board, place) == "ready" for place in self._slots.workers)

    def workers(self, now: float, *, stops: bool = False) -> list[dict[str, Any]]:
        """Return the workers; one that is gone is on its way, unless the node stops."""
        shown = [self._worker(place, place.child, now) for place in self._slots.workers]
        for worker in shown:
            if stops and worker["pid"] is None:
                worker["state"] = "draining"
        return shown

    def leaving(self, now: float) -> list[dict[str, Any]]:
        """Return the workers that have been replaced, or that there are too many of, and still drain."""
        places = {child.place for child in self._slots.children(WORKER)}
        return [
            self._worker(place, child, now)
            for place in sorted(places, key=lambda place: place.number)
            for child in place.leaving
        ]

    def degraded(
        self, now: float, redis: RedisState | None, reload: dict[str, Any] | None = None
    ) -> list[str]:
        """Return the reasons why the node is not what it should be."""
        wanted = len(self._slots.workers)
        ready = self.ready_workers
        missing = [f"workers: {ready} of {wanted} ready"] if ready < wanted else []
        return missing + self.troubles(now, redis, reload)

    def troubles(self, now: float, redis: RedisState | None, reload: dict[str, Any] | None) -> list[str]:
        """Return the reasons besides the number of workers that are ready."""
        reasons = []
        is_reachable = redis is not None and redis.reachable
        for place in self._slots.places():
            if place.is_failing:
                reasons.append(_failing(place, now))
            elif place.role != "worker" and (place.child is None or not place.child.is_ready):
                reasons.append(f"{place.name}: {place.state}")
            elif (trouble := self._trouble(place, now, is_reachable=is_reachable)) is not None:
                reasons.append(trouble)
        if redis is None:
            reasons.append("redis: not reached yet")
        elif not redis.reachable:
            reasons.append("redis: unreachable")
        elif redis.refused:
            reasons.append(f"redis: refuses the keeper's {redis.refused}; the log says why (chore_refused)")
        if reload is not None and reload["outcome"] == "failed":
            reasons.append(f"the last reload failed: {reload['reason']}")
        return reasons

    def metrics(self, now: float) -> dict[str, Any]:
        """Return the numbers of this node since its master began; none of the totals ever falls."""
        total = self._folded.plus(slot.numbers() for slot in self._living())
        roles = [role.counters() for role in self._board.roles()]
        states = Counter(_state(self._board, place) for place in self._slots.workers)
        return {
            "version": self._settings.version,
            "node": self._settings.node,
            "bounds": list(stats.BOUNDS),
            "types": {
                name: {
                    "completed": numbers.counts[stats.COMPLETED],
                    "failed": numbers.counts[stats.FAILED],
                    "retried": numbers.counts[stats.RETRIED],
                    "dead": numbers.counts[stats.DEAD],
                    "durations": _histogram(numbers.durations),
                }
                for name, numbers in sorted(_shown(total.types).items())
            },
            "waits": {queue: _histogram(wait) for queue, wait in sorted(_shown(total.waits).items())},
            "workers": {state: states[state] for state in ("starting", "ready", "draining", "backoff")},
            "restarts": dict(sorted(total.restarts.items())),
            "memory": [
                {"slot": place.number, "rss_bytes": slot.rss_bytes, "pss_bytes": slot.pss_bytes}
                for place in self._slots.workers
                if (slot := self._slot(place.child)) is not None
            ],
            "stale_commits": _sum(stats.STALE, total, roles),
            "leases_expired": _sum(stats.LEASES_EXPIRED, total, roles),
            "redis_errors": {
                kind: _sum(stats.redis_error(kind), total, roles) for kind in stats.REDIS_ERROR_KINDS
            },
            "counters": {name: _sum(index, total, roles) for name, index in stats.COUNTER_NAMES.items()},
            "totals": self._totals(now),
        }

    def _living(self) -> list[WorkerSlot]:
        slots = (self._slot(child) for child in self._slots.children(WORKER))
        return [slot for slot in slots if slot is not None]

    def _slot(self, child: Child | None) -> WorkerSlot | None:
        """Return the row of the scoreboard that a worker writes."""
        return None if child is None or child.cell is None else self._board.worker(child.cell)

    def _totals(self, now: float) -> dict[str, int]:
        living = self._living()
        # What ended with its worker, the keeper has counted.
        keeper = self._board.keeper.counters()
        counters = self._folded.counted([*(slot.counters() for slot in living), keeper])
        completed, failed = self._folded.per_minute(now, chain.from_iterable(s.seconds() for s in living))
        return {
            "completed": counters[stats.COMPLETED],
            "failed": counters[stats.FAILED],
            "retried": counters[stats.RETRIED],
            "dead": counters[stats.DEAD],
            "released": counters[stats.RELEASED],
            "crashes": self._folded.crashes,
            "completed_per_minute": completed,
            "failed_per_minute": failed,
        }

    def _worker(self, place: Place, child: Child | None, now: float) -> dict[str, Any]:
        slot = self._slot(child)
        wall = time.time() - now
        running = slot.running() if slot is not None else []
        return {
            "slot": place.number,
            "pid": child.pid if child is not None else None,
            "generation": child.generation if child is not None else 0,
            "state": _state(self._board, place) if child is place.child else "draining",
            "threads": self._settings.threads if child is None else child.threads,
            "running": [
                {
                    "id": entry.id,
                    "type": entry.type,
                    "attempt": entry.attempt,
                    "started_at": timestamp(wall + entry.started_at),
                    "runtime_s": round(max(0.0, now - entry.started_at), 3),
                }
                for entry in running
            ],
            "held": slot.held_count() if slot is not None else 0,
            "completed": slot.counter(stats.COMPLETED) if slot is not None else 0,
            "failed": slot.counter(stats.FAILED) if slot is not None else 0,
            "rss_bytes": slot.rss_bytes if slot is not None else 0,
            "pss_bytes": slot.pss_bytes if slot is not None else 0,
            "restarts": place.restarts,
            "condition": "well" if child is None else self._condition(child, now),
        }

    def _condition(self, child: Child, now: float) -> Condition:
        """Return how a worker is; one that is not ready yet is well."""
        slot = self._slot(child)
        if slot is None or not child.is_ready:
            return "well"
        return condition(
            last_beat=slot.last_beat, since=self._judged_since, now=now, runs=bool(slot.running()),
            is_stopped=slot.is_stopped, unserved_since=slot.unserved_since,
        )  # fmt: skip

    def _trouble(self, place: Place, now: float, *, is_reachable: bool) -> str | None:
        slot = self._slot(place.child)
        if place.child is None:
            return None
        if place.role != WORKER:
            # Of workers the keeper looks.
            return told(place.name, "stopped" if _is_stopped(place.child) else "well", 0.0)
        if slot is None:
            return None
        how = self._condition(place.child, now)
        if how == "unserved" and not is_reachable:
            # Said once for all.
            return None
        since = slot.unserved_since if how == "unserved" else slot.last_beat
        return told(place.name, how, now - max(since, self._judged_since))


def _shown(numbers: Mapping[str, N]) -> dict[str, N]:
    """Return numbers by the names under which they are shown."""
    shown = {name: one for name, one in numbers.items() if name != stats.OTHER}
    others = numbers.get(stats.OTHER)
    if others is not None:
        own = shown.get(stats.OTHER_SHOWN)
        shown[stats.OTHER_SHOWN] = others if own is None else own + others
    return shown


def _state(board: Scoreboard, place: Place) -> str:
    """A worker that drains of its own accord says so in its slot."""
    child = place.child
    if (
        place.state == "ready"
        and child is not None
        and child.cell is not None
        and board.worker(child.cell).state in ("draining", "ended")
    ):
        return "draining"
    return place.state


def _is_stopped(child: Child) -> bool:
    if child.pid is None:
        return False
    try:
        return bool(psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def _role(place: Place, *, stops: bool) -> dict[str, Any]:
    is_over = stops and place.child is None
    return {
        "pid": place.child.pid if place.child is not None else None,
        "state": "stopped" if is_over else place.state,
        "restarts": place.restarts,
    }


def _failing(place: Place, now: float) -> str:
    deaths = place.backoff.failures
    often = "" if deaths == 1 else f" {deaths} times in a row"
    text = f"{place.name}: died{often} before it was ready ({place.last_cause})"
    wait = place.due_at - now
    return f"{text}; next start in {wait:.1f} s" if place.child is None and wait > 0 else text


def _histogram(histogram: Histogram) -> dict[str, Any]:
    return {"buckets": list(histogram.buckets), "sum": histogram.sum, "count": histogram.count}


def _sum(index: int, total: Totals, roles: list[tuple[int, ...]]) -> int:
    return total.counters[index] + sum(counters[index] for counters in roles)
