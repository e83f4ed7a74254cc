"""The sampler: what the kernel says of the workers. Never done by the master: looking may have to wait for a
lock of the process that is looked at."""

from __future__ import annotations

from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.keeper.processes import is_stopped, proportional_bytes, resident_bytes

INTERVAL = 1.0
PSS_INTERVAL = 30.0


class Sampler:
    """Resident memory and state of all workers a run, and the proportional share of memory of one of those
    whose turn it is."""

    name = "sampler"
    needs_redis = False

    def __init__(self, board: Scoreboard) -> None:
        self._board = board
        self._pss_due: dict[str, float] = {}
        self._rss_due = 0.0

    def run(self, now: float) -> float:
        living = {slot.incarnation: slot for slot in self._board.workers() if slot.is_alive and slot.pid}
        if now >= self._rss_due:
            self._rss_due = now + INTERVAL
            for slot in living.values():
                slot.rss_bytes = resident_bytes(slot.pid) or 0
                slot.is_stopped = is_stopped(slot.pid)
        self._pss_due = {name: self._pss_due.get(name, 0.0) for name in living}
        waiting = [name for name, due in self._pss_due.items() if due <= now]
        for name in waiting[:1]:
            self._pss_due[name] = now + PSS_INTERVAL
            living[name].pss_bytes = proportional_bytes(living[name].pid) or 0
        return now if len(waiting) > 1 else min(self._rss_due, *self._pss_due.values(), now + INTERVAL)
