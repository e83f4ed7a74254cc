"""Taking the stacks of all workers: for whoever asks over the control socket, and for the log.

Nobody waits: a request is answered with its number, and whoever asked comes again for the answer, which is
there within the time of one inquiry.
"""

from __future__ import annotations

from typing import Any, Final

from prefork_q.errors import NotFound
from prefork_q.events import Events
from prefork_q.master.children import Child
from prefork_q.master.guard import Guard

LOG_LIMIT: Final = 3_000
"""Characters of a thread's stack in the log."""


class StackTaking:
    """One taking at a time; who asks meanwhile shares it."""

    def __init__(self, guard: Guard, events: Events) -> None:
        self._guard = guard
        self._events = events
        self._number = 0
        self._asked: list[Child] | None = None
        self._is_for_log = False
        self._taken: list[dict[str, Any]] = []

    def request(self, now: float, *, for_log: bool = False) -> int:
        """Begin; return the number of this taking."""
        if self._asked is None:
            self._number += 1
            self._asked = self._guard.ask_all(now)
        self._is_for_log = self._is_for_log or for_log
        return self._number

    @property
    def is_under_way(self) -> bool:
        return self._asked is not None

    def carry_on(self) -> None:
        """Note the answers when all are there. After the guard had its turn."""
        asked = self._asked
        if asked is None or not self._guard.has_answers(asked):
            return
        self._taken = [self._guard.shown(child) for child in asked]
        self._asked = None
        if self._is_for_log:
            self._is_for_log = False
            self._log()

    def shown(self, number: int) -> dict[str, Any]:
        """Return the taking of that number, as far as it is.

        Raises:
            NotFound: it is not the last one.
        """
        if number != self._number:
            raise NotFound(f"the stacks of request {number} are not kept any more")
        return {
            "number": number,
            "done": self._asked is None,
            "workers": self._taken if self._asked is None else [],
        }

    def _log(self) -> None:
        for worker in self._taken:
            who = {"worker": worker["slot"], "gen": worker["generation"], "pid": worker["pid"]}
            if not worker["threads"]:
                self._events.emit("stack", level="warning", thread=None, detail="it does not answer", **who)
            for thread in worker["threads"]:
                self._events.emit(
                    "stack", level="warning", thread=thread["name"], task=thread["task"], type=thread["type"],
                    stack=thread["stack"][-LOG_LIMIT:], **who,
                )  # fmt: skip
