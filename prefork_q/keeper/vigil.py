"""After the master's death: the keeper outlives the workers, and gives back what they leave.

The workers see the end of their channels and drain by themselves, as long as a drain may take. They
are not the keeper's children, so what it knows of them is their ids in the scoreboard and what the
kernel says of those; that is no witnessed death, so nothing is charged to any task.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from prefork_q.events import Events
from prefork_q.ipc.messages import Claim, DeathNotice
from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.keeper.handback import Returner
from prefork_q.keeper.processes import find, has_ended, kill

MARGIN = 0.5
"""Seconds that a worker may be late for the end of its own drain, and after that its tasks' hand-back."""

PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Survivor:
    slot: WorkerSlot
    process: psutil.Process | None


class Vigil:
    """The watch over the workers that are left. Boot times throughout."""

    def __init__(
        self, board: Scoreboard, returner: Returner, events: Events, *, now: float, drain_timeout: float
    ) -> None:
        self._returner = returner
        self._events = events
        self._kill_at = now + drain_timeout + MARGIN
        self.gives_up_at = self._kill_at + MARGIN
        self._survivors = [
            Survivor(slot, find(slot.pid)) for slot in board.workers() if slot.is_alive and slot.pid
        ]
        self._events.emit("master_lost", level="error", workers=len(self._survivors))
        self.next_look = now

    @property
    def is_over(self) -> bool:
        """Whether no worker is left."""
        return not self._survivors

    def look(self, now: float) -> None:
        """Hand back what the ended ones held; end the others when their time is up."""
        self.next_look = now + PAUSE
        if now >= self._kill_at:
            for survivor in self._survivors:
                if survivor.process is not None and not has_ended(survivor.process):
                    self._events.emit(
                        "worker_killed", level="warning", worker=survivor.slot.place,
                        slot_pid=survivor.process.pid, cause="drain timeout, and no master",
                    )  # fmt: skip
                    kill(survivor.process)
            # Killed is not yet gone: the next look will see it.
        left = []
        for survivor in self._survivors:
            if survivor.process is None or has_ended(survivor.process):
                self._returner.add(_notice(survivor.slot))
            else:
                left.append(survivor)
        self._survivors = left


def _notice(slot: WorkerSlot) -> DeathNotice:
    snapshot = slot.snapshot()
    held = tuple(Claim(entry.id, entry.token) for entry in snapshot.holds)
    return DeathNotice(snapshot.incarnation, slot.place, "the master died", drained=True, held=held)
