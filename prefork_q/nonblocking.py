"""A connection to Redis for a loop that must never wait: the worker's.

Connecting, with its name lookup, handshakes and login, is the library's and happens in a thread;
afterwards the socket is ours: commands are packed and answers are parsed by hiredis, and whatever
the kernel does not take or give at once is left for the next turn of the loop.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import hiredis

from prefork_q.connection import NoScriptError, RedisError, as_unavailable, raw_connection
from prefork_q.errors import Unavailable

CHUNK: Final = 65_536
"""Bytes read at once."""

AT_ONCE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER on, for no time: close(2) resets the connection and drops what was not sent (socket(7))."""


class Pending(Enum):
    """The answer has not arrived, or not whole."""

    PENDING = "pending"


PENDING: Final = Pending.PENDING

# Typed by the package for less than it takes.
pack_command: Any = hiredis.pack_command

WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class NonblockingLink:
    """One connection with at most one command under way. Owned by one thread.

    Poll `fileno` for `events`; after a failure the connection is closed, and what a command under
    way did is not known.
    """

    def __init__(self, url: str, *, timeout: float, wake: Callable[[], None]) -> None:
        """`timeout` in seconds is for each step of connecting; `wake` is called when that has ended.

        Raises:
            ConfigurationError: the URL is wrong.
        """
        self._url = url
        self._timeout = timeout
        self._wake = wake
        self._dial: _Dial | None = None
        self._connection: Any = raw_connection(url, timeout)
        self._socket: Any = None
        self._reader: Any = None
        self._buffer = bytearray(CHUNK)
        self._unsent = memoryview(b"")
        self.is_waiting = False
        """Whether a command was sent whose answer has not been received."""

    @property
    def is_connected(self) -> bool:
        return self._socket is not None

    @property
    def fileno(self) -> int:
        """The descriptor to poll, also when no command is under way; -1 when not connected."""
        return -1 if self._socket is None else int(self._socket.fileno())

    @property
    def events(self) -> int:
        return select.POLLIN | select.POLLOUT if self._unsent else select.POLLIN

    def connect(self) -> bool:
        """Begin to connect, or see how far it is; return whether it is done.

        Raises:
            Unavailable: it did not work.
        """
        if self._socket is not None:
            return True
        if self._dial is None:
            self._dial = _Dial(self._connection, self._wake)
            self._dial.start()
        if not self._dial.has_ended:
            return False
        error, self._dial = self._dial.error, None
        if error is not None:
            self.close()
            raise error
        self._socket = self._connection._get_socket()
        self._socket.setblocking(False)
        self._reader = hiredis.Reader(replyError=self._connection._parser.parse_error, notEnoughData=PENDING)
        return True

    def send(self, command: tuple[object, ...]) -> None:
        """Send one command, or as much of it as the kernel takes now; `flush` sends the rest.

        Raises:
            Unavailable: the connection is gone.
        """
        self._unsent = memoryview(pack_command(command))
        self.is_waiting = True
        self.flush()

    def flush(self) -> None:
        """Send more of the command under way.

        Raises:
            Unavailable: the connection is gone.
        """
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except WOULD_BLOCK:
            return
        except OSError as error:
            self.give_up()
            raise as_unavailable(error) from error

    def receive(self) -> Any:
        """Return the answer as bytes, integers and lists; PENDING if it has not arrived whole.

        Raises:
            NoScriptError: the server does not know the script; nothing was done.
            Unavailable: the connection is gone, Redis refused, or spoke unasked.
        """
        try:
            answer = self._read()
        except WOULD_BLOCK:
            return PENDING
        except (RedisError, OSError, hiredis.HiredisError) as error:
            self.give_up()
            raise as_unavailable(error) from error
        if not self.is_waiting:
            self.close()
            raise Unavailable("Redis spoke without being asked", kind="other")
        self.is_waiting = False
        if isinstance(answer, NoScriptError):
            raise answer
        if isinstance(answer, Exception):
            # The connection would still be good, but what refuses may be an old primary or a server
            # about to go: begin anew.
            self.close()
            raise as_unavailable(answer) from answer
        return answer

    def give_up(self) -> None:
        """Close the connection for its trouble, so that the command under way cannot arrive later.

        A closed connection would go on sending what its peer has not acknowledged; a reset one does not.
        """
        if self._socket is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        self.close()

    def close(self) -> None:
        """Close the connection, or abandon the attempt to connect."""
        self.is_waiting = False
        self._unsent = memoryview(b"")
        self._socket = None
        if self._dial is None:
            self._connection.disconnect()
        else:
            self._dial.abandon()
            self._dial = None
            self._connection = raw_connection(self._url, self._timeout)

    def _read(self) -> Any:
        reader, buffer = self._reader, self._buffer
        while (answer := reader.gets()) is PENDING:
            size = self._socket.recv_into(buffer)
            if not size:
                raise ConnectionResetError("the connection was closed by the server")
            reader.feed(buffer, 0, size)
        return answer


class _Dial:
    """One attempt to connect, in a thread of its own."""

    def __init__(self, connection: Any, wake: Callable[[], None]) -> None:
        self._connection = connection
        self._wake = wake
        self._is_abandoned = False
        self.has_ended = False
        self.error: Unavailable | None = None

    def start(self) -> None:
        try:
            threading.Thread(target=self._run, name="dial", daemon=True).start()
        except RuntimeError as error:
            self.error = Unavailable(f"no thread can be started to connect: {error}", kind="other")
            self.has_ended = True

    def abandon(self) -> None:
        """Close the connection, as soon as that can be done: nobody waits for it any more."""
        # In this order, and `_run` in the other: one of the two sees that the other has passed.
        self._is_abandoned = True
        if self.has_ended:
            self._connection.disconnect()

    def _run(self) -> None:
        try:
            self._connection.connect()
        except Exception as error:
            # Also what is no error of Redis or of the network, as a host name that cannot be encoded.
            self._connection.disconnect()
            self.error = as_unavailable(error)
        self.has_ended = True
        if self._is_abandoned:
            self._connection.disconnect()
        else:
            self._wake()
