"""The sampler: what the kernel says of the workers. Never done by the master: looking may have to wait for a
lock of the process that is looked at."""

from __future__ import annotations

import threading

from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.keeper.processes import is_stopped, proportional_bytes, resident_bytes

INTERVAL = 1.0
PSS_INTERVAL = 30.0
PSS_PAUSE = 0.1
"""Seconds from one worker's share to the next one's."""


class Sampler:
    """Resident memory and state of all workers a run, and the proportional share of memory of one of those
    whose turn it is.

    The share is read in a thread: the kernel walks all pages of the process for it, the longer the more
    there are, and leases are to be renewed and tasks to be promoted meanwhile.
    """

    name = "sampler"
    needs_redis = False

    def __init__(self, board: Scoreboard) -> None:
        self._board = board
        self._pss_due: dict[str, float] = {}
        self._rss_due = 0.0
        self._reader: threading.Thread | None = None

    def run(self, now: float) -> float:
        living = {slot.incarnation: slot for slot in self._board.workers() if slot.is_alive and slot.pid}
        if now >= self._rss_due:
            self._rss_due = now + INTERVAL
            for slot in living.values():
                slot.rss_bytes = resident_bytes(slot.pid) or 0
                slot.is_stopped = is_stopped(slot.pid)
        self._pss_due = {name: self._pss_due.get(name, 0.0) for name in living}
        waiting = [name for name, due in self._pss_due.items() if due <= now]
        if waiting and (self._reader is None or not self._reader.is_alive()):
            name = waiting[0]
            self._pss_due[name] = now + PSS_INTERVAL
            # A daemon: a process that hangs in the kernel must not keep the keeper from ending.
            self._reader = threading.Thread(target=_read_pss, args=(living[name], name), daemon=True)
            self._reader.start()
        return min(self._rss_due, now + PSS_PAUSE) if len(waiting) > 1 else self._rss_due


def _read_pss(slot: WorkerSlot, incarnation: str) -> None:
    share = proportional_bytes(slot.pid) or 0
    if slot.incarnation == incarnation:
        slot.pss_bytes = share
