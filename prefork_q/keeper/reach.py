"""Whether Redis can be reached: one line when it is lost, one when it is back, the master told of both."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from prefork_q.connection import RedisError, as_unavailable, redis
from prefork_q.errors import Unavailable
from prefork_q.events import Events
from prefork_q.ipc import stats
from prefork_q.ipc.messages import RedisState
from prefork_q.ipc.scoreboard import RoleSlot, boot_time
from prefork_q.survey import doubt_of_eviction

OUTAGE_KINDS = frozenset({"connection", "timeout", "loading", "readonly", "busy"})
"""Troubles that concern every call. The others (full, denied, other) concern one."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds between two looks: doubled each time, and shortened at random by up to a half."""


class Reach:
    """Lost at first: nobody has looked yet. While it is lost, only `look` talks to Redis."""

    def __init__(
        self, client: redis.Redis, tell: Callable[[RedisState], None], events: Events, slot: RoleSlot
    ) -> None:
        self._client = client
        self._tell = tell
        self._events = events
        self._slot = slot
        self._version: str | None = None
        self._warning: str | None = None
        self._failures = 0
        self._lost_at = 0.0
        self._longest_pause = LONGEST_PAUSE
        self.is_lost = True
        self.retry_at = 0.0
        self._refused = ""

    def is_lost_by(self, error: Unavailable) -> bool:
        """Count a call's failure; return whether it means that Redis is away."""
        self._slot.add(stats.redis_error(error.kind))
        if error.kind not in OUTAGE_KINDS:
            return False
        self._lose(error)
        return True

    def look(self) -> bool:
        """Look whether Redis is there."""
        try:
            info = self._ask()
        except Unavailable as error:
            self._slot.add(stats.redis_error(error.kind))
            self._lose(error)
            return False
        if self._failures:
            away = round(boot_time() - self._lost_at, 3)
            self._events.emit("redis_found", away_s=away)
        self.is_lost = False
        self._failures = 0
        self._version = str(info.get("valkey_version") or info.get("redis_version") or "") or None
        self._doubt(str(info.get("maxmemory_policy", "noeviction")))
        self._tell(self._state(reachable=True))
        return True

    def refuses(self, chores: str) -> None:
        """Let the master know the names of the chores that Redis refuses, though it answers."""
        if chores != self._refused:
            self._refused = chores
            self._tell(self._state(reachable=not self.is_lost))

    def hurry(self) -> None:
        """Look at once, and often: there is little time left."""
        self._longest_pause = FIRST_PAUSE
        self.retry_at = 0.0

    def _lose(self, error: Unavailable) -> None:
        # From scratch: an old connection may lead to a primary that is none any more.
        self._client.connection_pool.disconnect()
        now = boot_time()
        if not self._failures:
            self._lost_at = now
            self._events.emit("redis_lost", level="error", kind=error.kind, error=str(error))
            self._tell(self._state(reachable=False))
        pause = min(self._longest_pause, FIRST_PAUSE * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self.is_lost = True
        self.retry_at = now + pause * random.uniform(0.5, 1.0)

    def _doubt(self, policy: str) -> None:
        """Say it, each time that it is another, if the server deletes tasks when it is full."""
        before, self._warning = self._warning, doubt_of_eviction(policy)
        if self._warning and self._warning != before:
            self._events.emit("redis_doubtful", level="warning", detail=self._warning)

    def _state(self, *, reachable: bool) -> RedisState:
        return RedisState(reachable, self._version, self._warning, self._refused)

    def _ask(self) -> dict[str, Any]:
        """Return how the server describes itself, nothing if this user may not ask for it."""
        try:
            info: Any = self._client.info()
        except (RedisError, OSError) as error:
            if isinstance(error, redis.exceptions.NoPermissionError):
                return {}
            raise as_unavailable(error) from error
        if info.get("loading"):
            raise Unavailable("Redis is loading its data", kind="loading")
        if info.get("role") == "slave":
            raise Unavailable("Redis is a replica; waiting for a primary", kind="readonly")
        return dict(info)
