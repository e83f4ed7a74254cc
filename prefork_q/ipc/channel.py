"""A two-way channel between the master and one of its children.

A pair of Unix sockets of type SOCK_SEQPACKET: what was sent as one message arrives as one, in
order, and descriptors can travel along. Neither end ever blocks: what the kernel does not take
now waits in a bounded queue that `flush` (called by each `send` and `receive`) empties.
"""

from __future__ import annotations

import array
import os
import select
import socket
import time
from collections import deque
from collections.abc import Iterable

from prefork_q.errors import PreforkQError
from prefork_q.ipc.messages import Message, decode, encode

PACKET = 32_768
"""Bytes of a message in one packet; longer messages travel in several, far below the socket's buffer."""

MAX_QUEUED = 4_096
"""Packets. A peer that leaves so many unread is as good as gone."""

MAX_FDS = 253
"""Descriptors in one message: the kernel takes no more (SCM_MAX_FD, unix(7))."""
_MORE, _LAST = b"+", b"."


class ChannelClosed(PreforkQError):
    """The other end is closed, or has not read for far too long."""


class Channel:
    """One end. Belongs to one thread of one process."""

    __slots__ = ("_fds", "_parts", "_queue", "_socket")

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._queue: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._parts: list[bytes] = []
        self._fds: list[int] = []

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return the master's end and the child's."""
        parent, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(parent), cls(child)

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        """Take over a descriptor that came in a message."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """The descriptor to select on; -1 once closed."""
        return self._socket.fileno()

    @property
    def has_queued(self) -> bool:
        """Whether something still waits to be sent: call `flush` when the descriptor is writable."""
        return bool(self._queue)

    def send(self, message: Message, fds: Iterable[int] = ()) -> None:
        """Send, or queue what the kernel does not take now.

        Descriptors that had to be queued must stay open until `has_queued` is false.

        Raises:
            ChannelClosed: the other end is closed, or has left thousands of packets unread.
        """
        data = encode(message)
        attached = tuple(fds)
        for start in range(0, len(data), PACKET):
            is_last = start + PACKET >= len(data)
            self._queue.append(((_LAST if is_last else _MORE) + data[start : start + PACKET], attached))
            attached = ()
        self.flush()
        if len(self._queue) > MAX_QUEUED:
            raise ChannelClosed("the other end of the channel does not read")

    def flush(self) -> None:
        """Send as much of the queue as the kernel takes.

        Raises:
            ChannelClosed: the other end is closed.
        """
        while self._queue:
            data, fds = self._queue[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            try:
                self._socket.sendmsg([data], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError as error:
                raise ChannelClosed(f"the channel is closed: {error.strerror}") from error
            self._queue.popleft()

    def receive(self) -> Message | None:
        """Return the next message, or None if there is none now. Descriptors that came along are closed.

        Raises:
            ChannelClosed: the other end is closed and all that it had sent was read.
        """
        message, fds = self.receive_with_fds()
        for fd in fds:
            os.close(fd)
        return message

    def receive_with_fds(self) -> tuple[Message | None, list[int]]:
        """Like `receive`, with the descriptors that came along, now owned by the caller."""
        if self._queue:
            self._flush_quietly()
        while True:
            try:
                data, rights, _, _ = self._socket.recvmsg(
                    PACKET + 1, socket.CMSG_SPACE(4 * MAX_FDS), socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return None, []
            except ConnectionResetError:
                # Reported once, and before what is still to be read, if the peer left something
                # of ours unread when it closed. Its last words follow.
                continue
            except OSError as error:
                raise ChannelClosed(f"the channel is closed: {error.strerror}") from error
            if not data:
                raise ChannelClosed("the other end of the channel is closed")
            for level, kind, content in rights:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds = array.array("i")
                    fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                    self._fds.extend(fds)
            self._parts.append(data[1:])
            if data[:1] == _LAST:
                message, attached = decode(b"".join(self._parts)), self._fds
                self._parts, self._fds = [], []
                return message, attached

    def wait(self, timeout: float) -> Message | None:
        """Block up to `timeout` seconds for a message; None if none came.

        Raises:
            ChannelClosed: as `receive`.
        """
        deadline = time.monotonic() + timeout
        while True:
            message = self.receive()
            left = deadline - time.monotonic()
            if message is not None or left <= 0:
                return message
            self.poll(left)

    def poll(self, timeout: float) -> bool:
        """Block up to `timeout` seconds until something can be received (or the other end closed)."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(max(timeout, 0.0) * 1000))

    def close(self) -> None:
        """Close this end; the other one sees end of file after what was sent."""
        self._socket.close()

    def _flush_quietly(self) -> None:
        try:
            self.flush()
        except ChannelClosed:
            # The reader learns it from its own end of file, after the peer's last words.
            self._queue.clear()
