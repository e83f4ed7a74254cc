"""What the master tells the service manager: the protocol of sd_notify(3), over one datagram socket.

Pure protocol: what is told when is decided in `herald`. Nothing here waits. What the manager has no room for
now is kept and sent with the next turn, but for the sentence and the sign of life, which are soon old.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import MutableMapping
from typing import Final

VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Taken out of the environment: only the master notifies, and handlers' programs are no services."""
FEEDINGS: Final = 3
"""Signs of life in the time that the watchdog bears: two in it, even if one is late by half as much."""
MAX_KEPT: Final = 16
"""Messages kept for a manager that does not read; the oldest go first."""


class Notifier:
    """One service's line to its manager. Without an address every call does nothing.

    `watchdog` is what the manager bears without a sign of life, in seconds; None: it asks for none.
    """

    def __init__(self, address: str | None, *, watchdog: float | None = None) -> None:
        self.watchdog = watchdog if address else None
        self._address: str | None = None
        self._socket: socket.socket | None = None
        self._fed_at = 0.0
        self._kept: deque[bytes] = deque(maxlen=MAX_KEPT)
        if address and address[0] in "/@":
            # A leading @ stands for the zero byte of an abstract name.
            self._address = f"\0{address[1:]}" if address[0] == "@" else address
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Notifier:
        """Return the line that `environ` names, and take it out of there."""
        address, microseconds, pid = (environ.pop(name, "") for name in VARIABLES)
        is_ours = pid in ("", str(os.getpid()))
        watchdog = int(microseconds) / 1e6 if microseconds.isdecimal() and is_ours else 0.0
        return cls(address or None, watchdog=watchdog or None)

    @property
    def is_open(self) -> bool:
        """Whether there is a manager."""
        return self._socket is not None

    def ready(self, status: str) -> None:
        """All works: after the start, and after a reload whatever came of it."""
        self._send("READY=1", _status(status))

    def reloading(self, status: str) -> None:
        """A reload begins; `ready` ends it."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now}", _status(status))

    def stopping(self, status: str) -> None:
        """The end begins."""
        self._send("STOPPING=1", _status(status))

    def extend(self, seconds: float) -> None:
        """Ask for so many seconds from now on, for the start or the stop that is under way."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def status(self, status: str) -> None:
        """Tell how it is. Nothing is lost if this one is: the next one comes soon."""
        self._try(_status(status).encode())

    def alive(self) -> None:
        """Feed the watchdog."""
        self._try(b"WATCHDOG=1")

    def feed(self) -> None:
        """Feed the watchdog if it is time: for a loop that turns often enough and judges nothing else."""
        now = time.monotonic()
        if self.watchdog is not None and now >= self._fed_at + self.watchdog / FEEDINGS:
            self._fed_at = now
            self.alive()

    def retry(self) -> None:
        """Send what was kept."""
        while self._kept and self._try(self._kept[0]):
            self._kept.popleft()

    def close(self) -> None:
        """Notify no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        message = "\n".join(lines).encode()
        # In order: a READY that overtook a RELOADING would say the opposite.
        if self._kept or not self._try(message):
            self._kept.append(message)
        self.retry()

    def _try(self, message: bytes) -> bool:
        """Send; False if there is no room now. A manager that is gone takes everything."""
        if self._socket is None or self._address is None:
            return True
        try:
            self._socket.sendto(message, socket.MSG_NOSIGNAL, self._address)
        except BlockingIOError:
            return False
        except OSError:
            # Nobody listens any more. The service goes on; there is nobody to tell it to.
            return True
        return True


def _status(sentence: str) -> str:
    return "STATUS=" + " ".join(sentence.split())
