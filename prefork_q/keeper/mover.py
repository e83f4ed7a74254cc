"""The mover: takes due tasks to their queues, at the moment that they are due."""

from __future__ import annotations

from collections.abc import Callable

from prefork_q.broker import Broker
from prefork_q.connection import Link
from prefork_q.ipc import stats
from prefork_q.ipc.scoreboard import RoleSlot

BATCH = 500

LONGEST_WAIT = 10.0
"""Seconds. A keeper that took the token and died before it looked left others with a time too late."""

BLOCK, PATIENCE = 10, 5.0
"""Seconds that the server blocks, and that its answer may come later: after that the connection is
dead, however open it looks."""


class Mover:
    """Promotes due tasks, a batch a run; asleep until the next is due."""

    name = "mover"
    needs_redis = True

    def __init__(self, broker: Broker, slot: RoleSlot) -> None:
        self._broker = broker
        self._slot = slot

    def run(self, now: float) -> float:
        promoted = self._broker.promote(BATCH)
        self._slot.add(stats.PROMOTED, promoted.moved)
        if promoted.moved >= BATCH:
            return now
        wait = LONGEST_WAIT if promoted.next_due is None else min(LONGEST_WAIT, promoted.next_due)
        return now + wait


class Bell:
    """The connection that blocks on the `mover` list, where scripts leave a token when something is
    due earlier than was known. `ring` is called for each token.
    """

    name = "bell"
    needs_redis = True

    def __init__(self, link: Link, key: str, ring: Callable[[], None]) -> None:
        self._link = link
        self._key = key
        self._ring = ring
        self._deadline = 0.0

    def fileno(self) -> int:
        """The descriptor to poll; -1 while there is none."""
        return self._link.fileno() if self._link.is_connected else -1

    def run(self, now: float) -> float:
        """Connect if need be. An answer that is overdue means a connection that leads nowhere."""
        if self._link.is_connected and now < self._deadline:
            return self._deadline
        self._link.close()
        self._link.connect()
        return self._block(now)

    def answer(self, now: float) -> None:
        """Take the answer that has come, and block again.

        Raises:
            Unavailable: the connection is gone.
        """
        if self._link.receive() is not None:
            self._ring()
        self._block(now)

    def close(self) -> None:
        """Forget the connection; the next run makes another."""
        self._link.close()

    def _block(self, now: float) -> float:
        self._link.send("BLPOP", self._key, BLOCK)
        self._deadline = now + BLOCK + PATIENCE
        return self._deadline
