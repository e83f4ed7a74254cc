"""Whether Redis can be reached. The master is told of each change, and of the version."""

from __future__ import annotations

from collections.abc import Callable

from prefork_q.connection import RedisError, as_unavailable, redis
from prefork_q.errors import Unavailable
from prefork_q.events import Events
from prefork_q.ipc import stats
from prefork_q.ipc.messages import RedisState
from prefork_q.ipc.scoreboard import RoleSlot, boot_time
from prefork_q.outage import Outage

OUTAGE_KINDS = frozenset({"connection", "timeout", "loading", "readonly", "busy"})
"""Troubles that concern every call. The others (full, denied, other) concern one."""

LONGEST_PAUSE = 1.5
"""Seconds between two looks, before jitter."""


class Reach:
    """Lost at first: nobody has looked yet. While it is lost, only `look` talks to Redis."""

    def __init__(
        self, client: redis.Redis, tell: Callable[[RedisState], None], events: Events, slot: RoleSlot
    ) -> None:
        self._client = client
        self._tell = tell
        self._slot = slot
        self._outage = Outage(events, cap=LONGEST_PAUSE)
        self._version: str | None = None
        self.is_lost = True
        self.retry_at = 0.0

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
            self._version = self._ask()
        except Unavailable as error:
            self._slot.add(stats.redis_error(error.kind))
            self._lose(error)
            return False
        self.is_lost = False
        self._outage.ended()
        self._tell(RedisState(reachable=True, version=self._version))
        return True

    def _lose(self, error: Unavailable) -> None:
        # From scratch: an old connection may lead to a primary that is none any more.
        self._client.connection_pool.disconnect()
        if not self._outage.is_on:
            self._tell(RedisState(reachable=False, version=self._version))
        self.is_lost = True
        self.retry_at = boot_time() + self._outage.failed(error)

    def _ask(self) -> str | None:
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
