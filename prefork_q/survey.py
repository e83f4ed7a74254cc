"""What has to be known of a server before tasks are entrusted to it: its age, its memory, its disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prefork_q.connection import RedisError, as_unavailable, redis


@dataclass(frozen=True, slots=True)
class Facts:
    """A server as it describes itself. What its user may not ask is None.

    `fsync` is when the append-only file reaches the disk (always, everysec, no); "" without such a file.
    """

    kind: str
    version: tuple[int, ...]
    eviction: str
    is_primary: bool
    replicas: int
    fsync: str | None
    has_snapshots: bool | None

    @property
    def name(self) -> str:
        return f"{self.kind} {'.'.join(map(str, self.version))}"


def survey(client: redis.Redis) -> Facts:
    """Ask a server what it is.

    Raises:
        Unavailable: it does not answer, or does not let us ask.
    """
    try:
        info: Any = client.info()
    except (RedisError, OSError) as error:
        raise as_unavailable(error) from error
    kind = "valkey" if "valkey_version" in info else "redis"
    has_file = bool(info.get("aof_enabled"))
    return Facts(
        kind=kind,
        version=tuple(int(part) for part in str(info[f"{kind}_version"]).split(".")[:3] if part.isdecimal()),
        eviction=str(info.get("maxmemory_policy", "noeviction")),
        is_primary=info.get("role", "master") == "master",
        replicas=int(info.get("connected_slaves", 0)),
        fsync=_setting(client, "appendfsync") if has_file else "",
        has_snapshots=None if (save := _setting(client, "save")) is None else bool(save),
    )


def doubts(facts: Facts) -> list[str]:
    """Return what this server may do to tasks that were accepted, a sentence each."""
    found = [doubt] if (doubt := doubt_of_eviction(facts.eviction)) else []
    if facts.fsync == "":
        found.append(_without_file(facts))
    elif facts.fsync is None:
        found.append("it does not say when its append-only file reaches the disk (CONFIG GET is denied)")
    elif facts.fsync != "always":
        lost = "the last two seconds" if facts.fsync == "everysec" else "what the system had not yet written"
        found.append(
            f"appendfsync is {facts.fsync}: a crash of its machine may lose {lost} of accepted tasks"
        )
    if facts.replicas:
        found.append("its replicas follow behind: a failover may lose what was accepted just before it")
    return found


def doubt_of_eviction(policy: str) -> str | None:
    """Return what a server with this `maxmemory-policy` may do to tasks, None for nothing."""
    if policy == "noeviction":
        return None
    return f"maxmemory-policy is {policy}: when it is full it deletes tasks unasked; set noeviction"


def _without_file(facts: Facts) -> str:
    if facts.has_snapshots is None:
        return (
            "it keeps no append-only file, and does not say whether it keeps snapshots (CONFIG GET is denied)"
        )
    if facts.has_snapshots:
        return "it keeps snapshots only: a crash loses all since the last one; set appendonly yes"
    return "it keeps nothing on disk: a restart loses every task; set appendonly yes"


def _setting(client: redis.Redis, name: str) -> str | None:
    try:
        answer: Any = client.config_get(name)
    except (RedisError, OSError):
        # Managed servers deny CONFIG; that is then said instead.
        return None
    found = {_text(key): _text(value) for key, value in answer.items()}
    return found.get(name)


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
