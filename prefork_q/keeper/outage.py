"""Whether Redis answers: one line when an outage starts, one when it ends, the master told of both."""

from __future__ import annotations

import random
from collections.abc import Callable

from prefork_q.connection import RedisError, as_unavailable, redis
from prefork_q.errors import Unavailable
from prefork_q.events import Events
from prefork_q.ipc import stats
from prefork_q.ipc.messages import RedisState
from prefork_q.ipc.scoreboard import RoleSlot, boot_time

OUTAGE_KINDS = frozenset({"connection", "timeout", "loading", "readonly", "busy"})
"""Troubles that concern every call. The others (full, denied, other) concern one."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds between two looks: doubled each time, and shortened at random by up to a half."""

CALM = 10.0
"""Seconds without an outage after which the next one begins with the shortest pause again."""


class Outage:
    """Begins on: nobody has reached Redis yet. While it is on, only `ends` talks to Redis."""

    def __init__(
        self, client: redis.Redis, tell: Callable[[RedisState], None], events: Events, slot: RoleSlot
    ) -> None:
        self._client = client
        self._tell = tell
        self._events = events
        self._slot = slot
        self.is_on = True
        self.retry_at = 0.0
        self._began_at: float | None = None
        self._ended_at = 0.0
        self._looks = 0
        self._version: str | None = None

    def begins_with(self, error: Unavailable) -> bool:
        """Count a call's failure; return whether it means that Redis is away."""
        self._slot.add(stats.redis_error(error.kind))
        if error.kind not in OUTAGE_KINDS:
            return False
        if not self.is_on and boot_time() - self._ended_at > CALM:
            self._looks = 0
        self.is_on = True
        self._go_on(error)
        return True

    def ends(self) -> bool:
        """Look whether Redis is back."""
        try:
            version = self._look()
        except Unavailable as error:
            self._slot.add(stats.redis_error(error.kind))
            self._go_on(error)
            return False
        self.is_on = False
        self._ended_at = boot_time()
        self._version = version
        if self._began_at is not None:
            away = round(self._ended_at - self._began_at, 3)
            self._events.emit("redis_found", away_s=away, version=version)
        self._began_at = None
        self._tell(RedisState(reachable=True, version=version))
        return True

    def _go_on(self, error: Unavailable) -> None:
        # From scratch: an old connection may lead to a primary that is none any more.
        self._client.connection_pool.disconnect()
        now = boot_time()
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self._looks, 10))
        self._looks += 1
        self.retry_at = now + pause * random.uniform(0.5, 1.0)
        if self._began_at is None:
            self._began_at = now
            self._events.emit("redis_lost", level="error", kind=error.kind, error=str(error))
            self._tell(RedisState(reachable=False, version=self._version))

    def _look(self) -> str | None:
        """Return the server's version, None if this user may not ask for it."""
        try:
            info = self._client.info()
        except (RedisError, OSError) as error:
            if "permission" in str(error).lower():
                return None
            raise as_unavailable(error) from error
        if info.get("loading"):
            raise Unavailable("Redis is loading its data", kind="loading")
        if info.get("role") == "slave":
            raise Unavailable("Redis is a replica; waiting for a primary", kind="readonly")
        return str(info.get("valkey_version") or info.get("redis_version") or "") or None
