"""The keeper's chores, and when each is due.

A chore does one bounded piece of work and says when it wants to run next. The order of the list is
the order in which chores that are due at once run, so what comes first matters: hand back before
all else, renew before reap. While Redis is away, chores that need it wait; when it is back, all of
them are due at once, in that order.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

from prefork_q.errors import ConfigurationError, Unavailable
from prefork_q.events import Events
from prefork_q.ipc.scoreboard import boot_time
from prefork_q.keeper.reach import Reach

NEVER = float("inf")

REFUSED_PAUSE = 1.0
"""Seconds, at least, until a chore that Redis has refused tries again."""

FAILED_PAUSE = 5.0
"""Seconds until a chore with a mistake in it tries again."""


class Chore(Protocol):
    """One of the keeper's duties."""

    @property
    def name(self) -> str: ...

    @property
    def needs_redis(self) -> bool: ...

    def run(self, now: float) -> float:
        """Do a bounded piece of work.

        Returns:
            The boot time at which to run again: `now` for at once, NEVER for when asked.

        Raises:
            Unavailable: Redis could not do it; the chore can be run again as if it had not begun.
            ConfigurationError: this node must not go on.
        """
        ...


class Agenda:
    """Runs what is due. `beat` is called before whatever may take a while."""

    def __init__(
        self, chores: Sequence[Chore], reach: Reach, events: Events, *, beat: Callable[[float], None]
    ) -> None:
        self._chores = tuple(chores)
        self._due = {chore.name: 0.0 for chore in chores}
        self._reach = reach
        self._events = events
        self._beat = beat
        self._troubles: dict[str, str] = {}

    @property
    def next_due(self) -> float:
        """Boot time at which something is due."""
        times = [self._due[chore.name] for chore in self._chores if not self._must_wait(chore)]
        if self._reach.is_lost:
            times.append(self._reach.retry_at)
        return min(times, default=NEVER)

    def hurry(self, name: str) -> None:
        """Make a chore due at once."""
        self._due[name] = 0.0

    def run_due(self) -> None:
        """Run each chore that is due, once.

        Raises:
            ConfigurationError: this node must not go on.
        """
        if self._reach.is_lost and self._reach.retry_at <= self._now() and self._reach.look():
            for chore in self._chores:
                if chore.needs_redis:
                    self.hurry(chore.name)
        for chore in self._chores:
            now = self._now()
            if self._due[chore.name] <= now and not self._must_wait(chore):
                self._run(chore, now)

    def failed(self, chore: Chore, error: Unavailable) -> None:
        """Set when a chore that Redis has failed tries again."""
        now = self._now()
        if self._reach.is_lost_by(error):
            self._due[chore.name] = now
            return
        # Redis answers; it will not do this one thing (it is full, the user lacks a right).
        self._due[chore.name] = now + random.uniform(REFUSED_PAUSE, 2 * REFUSED_PAUSE)
        self._tell_once(chore, "chore_refused", kind=error.kind, error=str(error))

    def _run(self, chore: Chore, now: float) -> None:
        try:
            self._due[chore.name] = chore.run(now)
        except Unavailable as error:
            self.failed(chore, error)
        except ConfigurationError:
            raise
        except Exception:
            # Ours to mend. Meanwhile the other chores go on: above all leases must be renewed.
            self._due[chore.name] = self._now() + FAILED_PAUSE
            self._tell_once(chore, "chore_failed", kind="mistake", traceback=traceback.format_exc())
        else:
            if self._troubles.pop(chore.name, None):
                self._events.emit("chore_done_again", chore=chore.name)
                self._tell_master()

    def _tell_once(self, chore: Chore, event: str, *, kind: str, **fields: object) -> None:
        if self._troubles.get(chore.name) != kind:
            self._troubles[chore.name] = kind
            self._events.emit(event, level="error", chore=chore.name, kind=kind, **fields)
            self._tell_master()

    def _tell_master(self) -> None:
        self._reach.refuses(", ".join(name for name, kind in self._troubles.items() if kind != "mistake"))

    def _must_wait(self, chore: Chore) -> bool:
        return chore.needs_redis and self._reach.is_lost

    def _now(self) -> float:
        now = boot_time()
        self._beat(now)
        return now
