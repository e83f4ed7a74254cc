"""The worker's two connections to Redis, each with at most one command under way. Main thread only.

- `WakeLine` blocks in BLPOP on the wake lists of the worker's queues; that is all it does.
- `CommandLine` carries the scripts. A call whose answer was lost is sent again unchanged, which is
  safe: every verb answers the same again.

Neither waits: they are polled, send when asked, and have deadlines for what does not come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from prefork_q.connection import Link, NoScriptError
from prefork_q.errors import Unavailable
from prefork_q.ipc import stats
from prefork_q.ipc.scoreboard import boot_time
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.keys import Keys
from prefork_q.outage import Outage
from prefork_q.scripts import scripts

BLOCK: Final = 5.0
"""Seconds that a BLPOP waits: how seldom an idle worker calls."""
MARGIN: Final = 5.0
"""Seconds beyond which an answer that is due does not come any more."""
CONNECT_TIMEOUT: Final = 2.0


class Call(NamedTuple):
    """A script with its arguments, and what its sender wants back with the answer."""

    verb: str
    arguments: Sequence[object]
    context: Any


class CommandLine:
    """Sends one call at a time and sees it through."""

    def __init__(self, url: str, keys: Keys, slot: WorkerSlot, outage: Outage) -> None:
        self._link = Link(url, timeout=CONNECT_TIMEOUT)
        self._root = keys.root
        self._slot = slot
        self._outage = outage
        self._call: Call | None = None
        self._deadline = 0.0
        self._retry_at = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way; it stays so until its answer was taken."""
        return self._call is not None

    @property
    def fileno(self) -> int:
        """The descriptor to poll, -1 when there is nothing to wait for."""
        return self._link.fileno() if self._link.is_waiting else -1

    def next_wake(self, now: float) -> float | None:
        """Return the boot time at which `tick` has something to do, None if never."""
        if self._call is None:
            return None
        return self._deadline if self._link.is_waiting else self._retry_at

    def send(self, call: Call, now: float) -> None:
        """Begin a call. The line must not be busy."""
        self._call = call
        self._retry_at = now
        self.tick(now)

    def tick(self, now: float) -> None:
        """Send again what is due; give up waiting for an answer that is overdue."""
        if self._call is None:
            return
        if self._link.is_waiting:
            if now < self._deadline:
                return
            self._link.close()
            self._failed(Unavailable("Redis did not answer in time", kind="timeout"), now)
            return
        if now >= self._retry_at:
            self._send(scripts()[self._call.verb].by_sha(self._root, *self._call.arguments), now)

    def receive(self, now: float) -> tuple[Call, Any] | None:
        """Return the call and its answer, None if it has to be sent again."""
        call = self._call
        if call is None:
            return None
        try:
            answer = self._link.receive()
        except NoScriptError:
            self._send(scripts()[call.verb].by_source(self._root, *call.arguments), now)
            return None
        except Unavailable as error:
            self._failed(error, now)
            return None
        self._outage.ended()
        self._call = None
        return call, answer

    def close(self) -> None:
        self._link.close()

    def _send(self, command: Sequence[object], now: float) -> None:
        try:
            if not self._link.is_connected:
                self._link.connect()
            self._link.send(*command)
        except Unavailable as error:
            self._failed(error, now)
            return
        self._deadline = now + MARGIN

    def _failed(self, error: Unavailable, now: float) -> None:
        self._slot.add(stats.redis_error(error.kind))
        self._retry_at = max(now, boot_time()) + self._outage.failed(error)


class WakeLine:
    """Waits for a wake-up token on any of the queues."""

    def __init__(self, url: str, wake_keys: Sequence[str], outage: Outage) -> None:
        self._link = Link(url, timeout=CONNECT_TIMEOUT)
        self._command: tuple[object, ...] = ("BLPOP", *wake_keys, BLOCK)
        self._outage = outage
        self._deadline = 0.0
        self._retry_at = 0.0

    @property
    def is_waiting(self) -> bool:
        return self._link.is_waiting

    @property
    def fileno(self) -> int:
        return self._link.fileno() if self._link.is_waiting else -1

    def next_wake(self) -> float:
        return self._deadline if self._link.is_waiting else self._retry_at

    def arm(self, now: float) -> None:
        """Begin to wait, unless it does already, or failed just now."""
        if self._link.is_waiting:
            if now >= self._deadline:
                self._link.close()
                self._failed(Unavailable("a blocking read has outlived its time", kind="timeout"), now)
            return
        if now < self._retry_at:
            return
        try:
            if not self._link.is_connected:
                self._link.connect()
            self._link.send(*self._command)
        except Unavailable as error:
            self._failed(error, now)
            return
        self._deadline = now + BLOCK + MARGIN

    def receive(self, now: float) -> bool:
        """Read the answer; return whether it was a token (and not just the end of the wait)."""
        try:
            answer = self._link.receive()
        except NoScriptError:  # pragma: no cover - BLPOP is no script
            return False
        except Unavailable as error:
            self._failed(error, now)
            return False
        return answer is not None

    def close(self) -> None:
        self._link.close()

    def _failed(self, error: Unavailable, now: float) -> None:
        self._retry_at = max(now, boot_time()) + self._outage.failed(error)
