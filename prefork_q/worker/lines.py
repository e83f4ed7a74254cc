"""The worker's two connections to Redis, each with at most one command under way. Main thread only.

- `CommandLine` carries the scripts. A call whose answer was lost is sent again unchanged, which is
  safe: every verb answers the same again.
- `WakeLine` blocks in BLPOP on the wake lists of the worker's queues; that is all it does.

Neither waits: they are polled, send when asked, and have deadlines for what does not come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from prefork_q.connection import NoScriptError
from prefork_q.errors import Unavailable
from prefork_q.events import Events
from prefork_q.ipc import stats
from prefork_q.ipc.scoreboard import boot_time
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.keys import Keys
from prefork_q.nonblocking import PENDING, NonblockingLink
from prefork_q.outage import Backoff, Outage
from prefork_q.scripts import scripts

BLOCK: Final = 5.0
"""Seconds that a BLPOP waits: how seldom an idle worker calls."""
MARGIN: Final = 5.0
"""Seconds beyond which an answer that is due does not come any more."""
CONNECT_TIMEOUT: Final = 3.0
"""Seconds for each step of connecting."""
DEAF_AFTER: Final = 6
"""Failures in a row of the wake line alone, after which they are told."""


class Call(NamedTuple):
    """A script with its arguments, and what its sender wants back with the answer."""

    verb: str
    arguments: Sequence[object]
    context: Any


class CommandLine:
    """Sends one call at a time and sees it through."""

    def __init__(
        self, url: str, keys: Keys, slot: WorkerSlot, outage: Outage, wake: Callable[[], None]
    ) -> None:
        self._link = NonblockingLink(url, timeout=CONNECT_TIMEOUT, wake=wake)
        self._scripts = scripts()
        self._root = keys.root
        self._slot = slot
        self._outage = outage
        self._call: Call | None = None
        self._deadline = 0.0
        self._retry_at = 0.0
        self._has_answered = False
        self.sent_at = 0.0
        """Boot time at which the call under way, or the last one, was sent last."""

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way; it stays so until its answer was taken."""
        return self._call is not None

    @property
    def is_stuck(self) -> bool:
        """Whether a call is under way that cannot be sent now."""
        return self._call is not None and not self._link.is_waiting

    @property
    def fileno(self) -> int:
        """The descriptor to poll, -1 for none."""
        return self._link.fileno

    @property
    def events(self) -> int:
        return self._link.events

    def next_wake(self) -> float | None:
        """Return the boot time at which `tick` has something to do, None if not known."""
        if self._call is None:
            return None
        if self._link.is_waiting:
            return self._deadline
        # The end of a connecting that has begun wakes the loop.
        return self._retry_at or None

    def send(self, call: Call, now: float) -> None:
        """Begin a call. The line must not be busy."""
        self._call = call
        self._retry_at = now
        self.tick(now)

    def tick(self, now: float) -> None:
        """Send what is due; give up waiting for an answer that is overdue."""
        call, link = self._call, self._link
        if call is None or now < self._retry_at:
            return
        try:
            if link.is_waiting:
                if now >= self._deadline:
                    link.give_up()
                    raise Unavailable("Redis did not answer in time", kind="timeout")
            elif link.connect():
                link.send(self._scripts[call.verb].by_sha(self._root, *call.arguments))
                self.sent_at = now
                self._deadline = now + MARGIN
            else:
                self._retry_at = 0.0
        except Unavailable as error:
            self._failed(error, now)

    def serve(self, now: float) -> tuple[Call, Any] | None:
        """Look after the descriptor that has become ready; return an answered call with its answer."""
        call, link = self._call, self._link
        try:
            link.flush()
            answer = link.receive()
        except NoScriptError:
            if call is not None:
                self._send_source(call, now)
            return None
        except Unavailable as error:
            # An idle connection that has ended is none of the next call's troubles.
            if call is not None:
                self._failed(error, now)
            return None
        if call is None or answer is PENDING:
            return None
        self._has_answered = True
        if self._outage.is_on:
            self._slot.unserved_since = 0.0
        self._outage.ended()
        self._call = None
        return call, answer

    def begin_anew(self) -> None:
        """Take another connection for the next call: the wake line's has failed, and this one, idle for as
        long, may be as dead without a word."""
        if self._call is None:
            self._link.close()

    def close(self) -> None:
        self._link.close()

    def _send_source(self, call: Call, now: float) -> None:
        try:
            self._link.send(self._scripts[call.verb].by_source(self._root, *call.arguments))
        except Unavailable as error:
            self._failed(error, now)
        else:
            self._deadline = now + MARGIN

    def _failed(self, error: Unavailable, now: float) -> None:
        self._slot.add(stats.redis_error(error.kind))
        if self._has_answered and error.kind == "connection":
            # A connection that was good before may have been closed for its age: try another at once.
            self._has_answered = False
            self._retry_at = now
            return
        self._has_answered = False
        if not self._outage.is_on:
            self._slot.unserved_since = now
        self._retry_at = max(now, boot_time()) + self._outage.failed(error)


class WakeLine:
    """Waits for a wake-up token on any of the queues.

    After each failure the loop has to look for itself, since a token may have gone with the
    connection. That shows a Redis that is away, so only a line that fails alone is told of.
    """

    def __init__(
        self, url: str, wake_keys: Sequence[str], slot: WorkerSlot, outage: Outage, events: Events,
        wake: Callable[[], None],
    ) -> None:  # fmt: skip
        """`outage` is the command line's."""
        self._link = NonblockingLink(url, timeout=CONNECT_TIMEOUT, wake=wake)
        self._command: tuple[object, ...] = ("BLPOP", *wake_keys, BLOCK)
        self._slot = slot
        self._outage = outage
        self._events = events
        self._backoff = Backoff()
        self._is_told = False
        self._deadline = 0.0
        self._retry_at = 0.0
        self.may_have_lost = False
        """Whether a token may have been lost with a connection; for the loop to clear."""

    @property
    def fileno(self) -> int:
        """The descriptor to poll, -1 for none."""
        return self._link.fileno

    @property
    def events(self) -> int:
        return self._link.events

    def next_wake(self) -> float | None:
        """Return the boot time at which `arm` has something to do, None if not known."""
        return self._deadline if self._link.is_waiting else self._retry_at or None

    def arm(self, now: float) -> None:
        """Begin to wait, unless it does already, or failed just now."""
        link = self._link
        if now < self._retry_at:
            return
        try:
            if link.is_waiting:
                if now >= self._deadline:
                    link.give_up()
                    raise Unavailable("a blocking read has outlived its time", kind="timeout")
            elif link.connect():
                link.send(self._command)
                self._deadline = now + BLOCK + MARGIN
            else:
                self._retry_at = 0.0
        except Unavailable as error:
            self._failed(error, now)

    def serve(self, now: float) -> bool:
        """Look after the descriptor that has become ready; return whether a token has come."""
        was_waiting = self._link.is_waiting
        try:
            self._link.flush()
            answer = self._link.receive()
        except Unavailable as error:
            if was_waiting:
                self._failed(error, now)
            return False
        if answer is PENDING:
            return False
        self._backoff.worked()
        self._is_told = False
        return answer is not None

    def leave(self, now: float) -> bool:
        """Wait no more; return whether a token had come already."""
        has_token = self._link.is_connected and self.serve(now)
        self._link.close()
        return has_token

    def close(self) -> None:
        self._link.close()

    def _failed(self, error: Unavailable, now: float) -> None:
        self._slot.add(stats.redis_error(error.kind))
        self.may_have_lost = True
        self._retry_at = max(now, boot_time()) + self._backoff.failed()
        if self._backoff.failures >= DEAF_AFTER and not self._outage.is_on and not self._is_told:
            self._is_told = True
            self._events.emit("wakes_lost", level="warning", kind=error.kind, error=str(error))
