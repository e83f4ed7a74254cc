"""One node of the fault suite, its link to the server, and what was done to its processes."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefork_q.control.client import ask
from prefork_q.errors import PreforkQError
from tests.chaos.handlers import NODE
from tests.chaos.plan import DRAIN, LEASE
from tests.support import leaks
from tests.support.node import Node
from tests.support.proxy import Proxy

ROOT = Path(__file__).parents[2]
TITLE = re.compile(rb"prefork-q: (master|template|keeper|api|worker)")
RESTART_DELAY = 1.0
"""Seconds between an end of the master and its next start, as a service manager has it."""


@dataclass(frozen=True, slots=True)
class Exit:
    """`since` is when it was told to stop, None if it was not."""

    at: float
    code: int
    since: float | None


class Site:
    """Keeps its node running. Used by the conductor's thread, which must be the process's main thread."""

    def __init__(
        self,
        number: int,
        proxy: Proxy,
        folder: Path,
        *,
        target: Path,
        namespace: str,
        ledger: Path,
        workers: int,
        threads: int,
    ) -> None:
        self.number = number
        self.proxy = proxy
        self.is_link_troubled = False
        self.node = Node(
            self.proxy.url, folder, namespace=namespace, target=f"{target}:app", ledger=ledger,
            workers=workers, threads=threads,
            environ={"PYTHONPATH": str(ROOT), NODE: str(number)},
            lease=f"{LEASE:g}s", drain_timeout=f"{DRAIN:g}s", grace="500ms", log_level="debug",
        )  # fmt: skip
        self.sessions: list[int] = []
        self.exits: list[Exit] = []
        self.told_to_stop: float | None = None
        self.restart_at = 0.0
        self.is_wanted = True

    def start(self) -> None:
        self.told_to_stop = None
        self.node.start(wait_ready=False)
        self.sessions.append(self.node.pid)

    def supervise(self) -> None:
        """Start the master again if it has ended, a moment after that."""
        code = self.node.exit_code
        if code is None:
            return
        if self.restart_at == 0.0:
            now = time.time()
            self.exits.append(Exit(now, code, self.told_to_stop))
            self.restart_at = now + RESTART_DELAY
        if self.is_wanted and time.time() >= self.restart_at and self._is_port_free():
            self.restart_at = 0.0
            self.start()

    def _is_port_free(self) -> bool:
        """An api that is stopped holds the port of a master that is gone until it goes on; a new master would
        end with that as its reason, and whoever supervises it would try again."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.node.port))
            except OSError:
                return False
        return True

    @property
    def is_up(self) -> bool:
        return self.node.exit_code is None

    def pids(self, role: str) -> list[int]:
        """The processes of a role, without asking anybody: the master may be stopped."""
        if not self.is_up:
            return []
        master = self.node.pid
        if role == "master":
            return [master]
        try:
            children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
        except OSError:
            return []
        return [int(pid) for pid in children if _role(int(pid)) == role]

    def status(self) -> dict[str, Any] | None:
        """What `ctl status` says, None while nobody answers."""
        try:
            answer: dict[str, Any] = ask(self.node.ctl_socket, "status", timeout=2)
        except (PreforkQError, OSError):
            return None
        return answer

    def trouble(self) -> str:
        """What keeps it from being whole; empty if nothing does."""
        status = self.status() if self.is_up else None
        if status is None:
            return "its master does not answer" if self.is_up else "its master is down"
        states = [worker["state"] for worker in status["workers"]]
        if status["state"] != "running" or status["degraded"] or set(states) != {"ready"}:
            return f"{status['state']}, degraded: {status['degraded']}, workers: {states}"
        return ""

    def left(self) -> list[str]:
        """A line for each process of any of its masters' sessions that still runs."""
        return [leaks.describe(one) for session in self.sessions for one in leaks.session(session)]

    def close(self) -> None:
        self.is_wanted = False
        for session in self.sessions:
            leaks.end(leaks.session(session))
        if self.sessions:
            self.node.close()


def _role(pid: int) -> str:
    try:
        found = TITLE.match(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return ""
    return found[1].decode() if found else ""


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; tell whether there was such a process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
