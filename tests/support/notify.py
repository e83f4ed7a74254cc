"""A service manager's end of sd_notify(3): a socket that keeps what it is told, and by which process."""

from __future__ import annotations

import os
import socket
import struct
import time
from types import TracebackType

CREDENTIALS = struct.Struct("3i")
"""pid, uid and gid of the sender, added by the kernel (SCM_CREDENTIALS in unix(7))."""
SCM_CREDENTIALS = 2


class Manager:
    """Listens at `address`, a path or an abstract name with a leading @."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.senders: set[int] = set()
        self.times: list[tuple[float, dict[str, str]]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)

    def __enter__(self) -> Manager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        if not self.address.startswith("@"):
            os.unlink(self.address)

    def received(self) -> list[dict[str, str]]:
        """Return what has come since the last call, each message as its assignments."""
        messages = []
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(65_536, 1_024, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return messages
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, SCM_CREDENTIALS):
                    self.senders.add(CREDENTIALS.unpack(content[: CREDENTIALS.size])[0])
            message = dict(line.split("=", 1) for line in data.decode().split("\n"))
            self.times.append((time.monotonic(), message))
            messages.append(message)

    def all(self) -> list[dict[str, str]]:
        """Return everything that ever came."""
        self.received()
        return [message for _, message in self.times]

    def states(self) -> list[str]:
        """Return the changes of state among it, in order: READY, RELOADING, STOPPING."""
        return [
            next(iter(message))
            for message in self.all()
            if next(iter(message)) in ("READY", "RELOADING", "STOPPING")
        ]
