"""The server of the fault suite, whichever it is just now, and the names by which everybody reaches it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis

from tests.support.flavours import Flavour
from tests.support.proxy import Proxy
from tests.support.server import NEVER, ProcessServer
from tests.support.until import until

PATIENCE = 20.0
"""Seconds within which a replica is in step, and within which a primary has handed over."""
# A replica is served at once, instead of after the seconds in which others might come.
ARGUMENTS = ("--repl-diskless-sync-delay", "0")


class Servers:
    """One primary at a time; `hand_over` makes it another. Used by the conductor's thread.

    They are processes, because they are killed and stopped, and reach one another.

    Attributes:
        current: the primary. Nobody keeps it: after a failover it is another.
    """

    def __init__(self, flavour: Flavour, folder: Path) -> None:
        self._flavour = flavour
        self._folder = folder
        self._made = 0
        self._names: list[Proxy] = []
        self._old: ProcessServer | None = None
        self.current = self._start()

    def name(self) -> Proxy:
        """A new proxy before the current server, which is led to the next one; closed with the servers."""
        name = Proxy(self.current.url)
        self._names.append(name)
        return name

    def client(self, **options: Any) -> redis.Redis:
        """A new client of the current server alone, for one use; to be closed by the caller."""
        defaults: dict[str, Any] = {"socket_timeout": 2, "socket_connect_timeout": 2, "retry": NEVER}
        return redis.Redis.from_url(self.current.url, **(defaults | options))

    def hand_over(self) -> None:
        """Make a new replica the current server once it has everything. Call `follow` and `part` next.

        Waits for that: a tenth of a second on Redis, two on Valkey, whose replicas look up once a second.
        The old one refuses to write from then on; names still lead to it.

        Raises:
            AssertionError: it did not come about in time.
        """
        self.part()
        old, new = self.current, self._start()
        try:
            with old.client() as admin, new.client() as its_admin:
                host, port = _place(old)
                its_admin.replicaof(host, port)
                until(lambda: _is_in_step(its_admin), PATIENCE, "a replica in step")
                until(lambda: _is_online(admin, _place(new)), PATIENCE, "a primary that knows of its replica")
                # Whatever another fault has set.
                its_admin.config_set("maxmemory", admin.config_get("maxmemory")["maxmemory"])
                # Named, or it could be one whom nobody follows any more.
                admin.execute_command("FAILOVER", "TO", *_place(new))
                until(lambda: _role(admin) == "slave", PATIENCE, "an old primary that is a replica")
                until(lambda: _role(its_admin) == "master", PATIENCE, "a replica that is the primary")
        except BaseException:
            self._end(new)
            raise
        self._old, self.current = old, new

    def follow(self) -> None:
        """Lead all names to the current server. Connections to the old one stay open."""
        for name in self._names:
            name.lead_to(self.current.url)

    def part(self) -> None:
        """End the server that was the primary before, if it is still there, and with it all connections to
        it. Names lead to the current one."""
        if self._old is None:
            return
        self.follow()
        self._end(self._old)
        self._old = None

    def close(self) -> None:
        """End all; the data of the current one stay, and the logs of all."""
        if self._old is not None:
            self._end(self._old)
        if self.current.is_running:
            self.current.kill()
        for name in self._names:
            name.close()

    def _start(self) -> ProcessServer:
        self._made += 1
        server = ProcessServer(self._flavour, self._folder / f"server-{self._made}", arguments=ARGUMENTS)
        server.start()
        return server

    def _end(self, server: ProcessServer) -> None:
        """For good. Only its log is kept: hours of failovers would fill the disk."""
        number = urlsplit(server.url).port
        (self._folder / f"server-at-{number}.log").write_text(server.log())
        server.stop()


def _place(server: ProcessServer) -> tuple[str, int]:
    parts = urlsplit(server.url)
    return parts.hostname or "", parts.port or 0


def _role(admin: redis.Redis) -> str:
    found: Any = admin.info("replication")
    return str(found["role"])


def _is_in_step(replica: redis.Redis) -> bool:
    """Whether it follows, and has all that it was sent in its append-only file: before that it would come
    back from a SIGKILL without it."""
    found: Any = replica.info("everything")
    is_writing = found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"]
    return bool(found["master_link_status"] == "up" and found["aof_enabled"] and not is_writing)


def _is_online(primary: redis.Redis, place: tuple[str, int]) -> bool:
    """Whether a primary takes the replica there for one that could follow it: a moment after that is so."""
    found: Any = primary.info("replication")
    replicas = [found[f"slave{number}"] for number in range(found["connected_slaves"])]
    return any((one["ip"], one["port"], one["state"]) == (*place, "online") for one in replicas)
