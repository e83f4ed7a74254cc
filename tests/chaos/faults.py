"""The faults: each does its harm and returns how to end it, or None if it could not be done just now."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import redis

from tests.chaos.plan import Fault
from tests.chaos.servers import Servers
from tests.chaos.site import Site, send
from tests.support.proxy import TO_CLIENT, TO_SERVER

End = Callable[[], None]

FLAP_INTERVAL = 0.3
"""Seconds between two resets of a link that flaps."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A process that was stopped between two times."""

    pid: int
    since: float
    until: float


def nothing() -> None:
    """The end of what ends by itself."""


class Faults:
    """Does harm, and notes to whom. Used by the conductor's thread."""

    def __init__(self, servers: Servers, sites: Sequence[Site]) -> None:
        self._servers = servers
        self._sites = sites
        self._server_is = "up"
        self.kills: dict[int, float] = {}
        """When processes were killed, by their ids: the last moment at which they were surely alive."""
        self.stops: list[Stop] = []
        self.injected: Counter[str] = Counter()
        self._flapping: set[Site] = set()
        self._flap_at = 0.0

    def inject(self, fault: Fault) -> End | None:
        """Do it. None: it made no sense just now."""
        site = self._sites[fault.node % len(self._sites)]
        verb, _, object_ = fault.kind.partition("_")
        if object_ in ("worker", "keeper", "api", "template", "master") and verb != "term":
            end = self._signal(site, object_, fault.pick, is_kill=verb == "kill")
        elif object_ in ("links", "answers", "commands"):
            end = self._trouble_link(site, fault)
        else:
            end = getattr(self, f"_{fault.kind}")(site, fault)
        if end is not None:
            self.injected[fault.kind] += 1
        return end

    # -- processes

    def _signal(self, site: Site, role: str, pick: float, *, is_kill: bool) -> End | None:
        pids = site.pids(role)
        if not pids:
            return None
        pid = pids[int(pick * len(pids))]
        now = time.time()
        if is_kill:
            self.kills[pid] = now
            return nothing if send(pid, signal.SIGKILL) else None
        if not send(pid, signal.SIGSTOP):
            return None

        def go_on() -> None:
            self.stops.append(Stop(pid, now, time.time()))
            send(pid, signal.SIGCONT)

        return go_on

    def _term_worker(self, site: Site, fault: Fault) -> End | None:
        pids = site.pids("worker")
        if not pids:
            return None
        return nothing if send(pids[int(fault.pick * len(pids))], signal.SIGTERM) else None

    def _kill_node(self, site: Site, fault: Fault) -> End | None:
        if not site.is_up:
            return None
        now = time.time()
        for role in ("worker", "keeper", "template", "api"):
            self.kills |= dict.fromkeys(site.pids(role), now)
        site.node.kill("all")
        site.is_wanted = False

        def let_start() -> None:
            site.is_wanted = True

        return let_start

    def _drain_node(self, site: Site, fault: Fault) -> End | None:
        if not site.is_up or site.told_to_stop:
            return None
        site.told_to_stop = time.time()
        site.node.send(signal.SIGTERM)
        return nothing

    # -- the server

    def _flush_scripts(self, site: Site, fault: Fault) -> End | None:
        try:
            with self._servers.client() as admin:
                admin.script_flush()
        except redis.RedisError:
            return None
        return nothing

    def _kill_server(self, site: Site, fault: Fault) -> End | None:
        if self._server_is != "up":
            return None
        self._server_is = "down"
        self._servers.part()
        self._servers.current.kill()

        def start() -> None:
            self._servers.current.start()
            self._server_is = "up"

        return start

    def _pause_server(self, site: Site, fault: Fault) -> End | None:
        if self._server_is != "up":
            return None
        self._server_is = "paused"
        self._servers.part()
        self._servers.current.pause()

        def resume() -> None:
            self._servers.current.resume()
            self._server_is = "up"

        return resume

    def _fill_server(self, site: Site, fault: Fault) -> End | None:
        if self._server_is != "up":
            return None
        try:
            self._limit_memory(1)
        except redis.RedisError:
            return None

        def empty() -> None:
            # A restart has emptied it, too; a pause ends first.
            if self._server_is == "up":
                self._limit_memory(0)

        return empty

    def _limit_memory(self, size: int) -> None:
        with self._servers.client() as admin:
            admin.config_set("maxmemory", size)

    def _fail_over(self, site: Site, fault: Fault) -> End | None:
        """In one of three ways: all are led to the new primary and cut off from the old one at once; or
        connections to the old one stay for a while; or even new ones lead there for a while."""
        if self._server_is != "up":
            return None
        self._servers.hand_over()
        way = int(3 * fault.pick)
        if way == 0:
            self._servers.part()
            return nothing
        if way == 1:
            self._servers.follow()
        return self._servers.part

    # -- links

    def _trouble_link(self, site: Site, fault: Fault) -> End | None:
        if site.is_link_troubled:
            return None
        proxy = site.proxy
        match fault.kind:
            case "reset_links":
                proxy.reset()
                return nothing
            case "freeze_links":
                proxy.freeze()
                return nothing
            case "flap_links":
                self._flapping.add(site)
            case "cut_links":
                proxy.cut()
            case "delay_links":
                proxy.delay(0.002 + 0.2 * fault.pick)
            case "pause_links":
                proxy.pause(*((TO_SERVER,), (TO_CLIENT,), ())[int(3 * fault.pick)])
            case "swallow_answers":
                proxy.swallow(TO_CLIENT)
            case "swallow_commands":
                proxy.swallow(TO_SERVER)
            case _:
                raise ValueError(fault.kind)
        site.is_link_troubled = True

        def heal() -> None:
            proxy.heal()
            self._flapping.discard(site)
            site.is_link_troubled = False

        return heal

    def tick(self) -> None:
        """Reset the links that flap once more; called often."""
        now = time.monotonic()
        if now >= self._flap_at:
            self._flap_at = now + FLAP_INTERVAL
            for site in self._flapping:
                site.proxy.reset()

    def make_whole(self) -> None:
        """End what outlasted its fault's end."""
        self._limit_memory(0)
