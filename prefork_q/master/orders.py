"""What the node is asked and told, by its control socket and by signals. Runs in the master.

Each is answered at once, from memory; what takes time is begun here, and the master's loop carries it on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from prefork_q.errors import Conflict, NotFound
from prefork_q.events import Events
from prefork_q.ipc.scoreboard import boot_time
from prefork_q.master.children import WORKER
from prefork_q.master.family import Family
from prefork_q.master.reload import Reloads
from prefork_q.master.report import Report
from prefork_q.master.scale import scaled
from prefork_q.master.stacks import StackTaking
from prefork_q.master.succession import Succession


class Orders:
    """The commands of the control socket; `scale_by` and `quieten` are for signals, which get no answer.

    `capacity` is the most workers that there may be; `state` is that of the node, and `begin_drain` begins
    its end.
    """

    def __init__(
        self,
        family: Family,
        succession: Succession,
        reloads: Reloads,
        stacks: StackTaking,
        report: Report,
        events: Events,
        *,
        capacity: int,
        state: Callable[[], str],
        begin_drain: Callable[[], None],
    ) -> None:
        self._family = family
        self._succession = succession
        self._reloads = reloads
        self._stacks = stacks
        self._report = report
        self._events = events
        self._capacity = capacity
        self._state = state
        self._begin_drain = begin_drain

    # -- questions -----------------------------------------------------------------------------------

    def ping(self) -> dict[str, Any]:
        version = self._family.current.settings.version
        return {"pid": os.getpid(), "version": version, "state": self._state()}

    def status(self) -> dict[str, Any]:
        """Return what `ctl status --json` shows."""
        return self._report.status(
            boot_time(), state=self._state(), generation=self._family.current.number,
            redis=self._family.redis, reload=self._reloads.shown(),
        )  # fmt: skip

    def metrics(self) -> dict[str, Any]:
        """Return the numbers of this node, as plain JSON."""
        return self._report.metrics(boot_time())

    def stacks(self, number: int | None = None) -> dict[str, Any]:
        """Ask for the stacks of all workers, or for the answer to the request of that number."""
        if number is None:
            number = self._stacks.request(boot_time())
        return self._stacks.shown(number)

    # -- orders --------------------------------------------------------------------------------------

    def reload(self) -> dict[str, Any]:
        """Ask for a reload; return the number of the one that will have read what is on disk now."""
        self._require_going_on()
        return {"number": self._reloads.request()}

    def scale(self, to: str) -> dict[str, Any]:
        """Have so many workers, or so many more or less; return how many there were and will be."""
        self._require_going_on()
        return self._scale(scaled(to, len(self._family.slots.workers), self._capacity))

    def scale_by(self, step: int) -> None:
        """Have so many workers more or less, if that can be."""
        workers = len(self._family.slots.workers) + step
        if not self._is_stopping and 1 <= workers <= self._capacity:
            self._scale(workers)

    def set_quiet(self, quiet: bool) -> dict[str, Any]:
        """Let the workers claim nothing more, or claim again; return the state."""
        self._require_going_on()
        self.quieten(quiet)
        return {"state": self._state()}

    def quieten(self, quiet: bool) -> None:
        """The same, where nobody waits for an answer."""
        if not self._is_stopping and self._family.set_quiet(quiet):
            self._events.emit("quieted" if quiet else "resumed")

    def restart(self, number: int) -> dict[str, Any]:
        """Replace a worker, the new one up before the old one drains; return whom."""
        self._require_going_on()
        workers = self._family.slots.workers
        place = next((place for place in workers if place.number == number), None)
        if place is None:
            numbers = ", ".join(str(place.number) for place in workers)
            raise NotFound(f"there is no worker {number}; there are: {numbers}")
        pid = place.child.pid if place.child is not None else None
        place.due_at = 0.0
        if place.child is not None:
            self._succession.hurry(place)
        self._events.emit("restart_asked", worker=number, pid=pid)
        return {"worker": number, "pid": pid}

    def drain(self) -> dict[str, Any]:
        """Stop the node; return the pid of its master, which ends last."""
        if not self._is_stopping:
            self._events.emit("drain_asked")
            self._begin_drain()
        return {"pid": os.getpid(), "state": self._state()}

    @property
    def _is_stopping(self) -> bool:
        return self._state() == "draining"

    def _require_going_on(self) -> None:
        if self._is_stopping:
            raise Conflict("the node stops")

    def _scale(self, workers: int) -> dict[str, Any]:
        before = len(self._family.slots.workers)
        if workers != before:
            self._succession.resize(WORKER, workers)
            self._events.emit("scaled", workers=workers, before=before)
        return {"workers": workers, "before": before}
