"""The answering side of the control socket: inside the master's loop, so nothing here blocks.

The socket has mode 0660 in a folder where nobody else can swap it. A lock beside it tells a living
master from the file that a dead one left. Clients have bounded buffers and two seconds.
"""

from __future__ import annotations

import fcntl
import os
import select
import selectors
import socket
import stat
import struct
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

from prefork_q.control.protocol import (
    MAX_REQUEST,
    TIME_LIMIT,
    Request,
    decode_request,
    encode_data,
    encode_error,
)
from prefork_q.errors import ConfigurationError, PreforkQError
from prefork_q.events import Events

PATH_LIMIT: Final = 107
"""Bytes that the address of a Unix socket may have (unix(7))."""
BREATH: Final = 0.1
"""Seconds without accepting after that failed: out of descriptors, the next turn would only fail again."""
MAX_CLIENTS: Final = 128
"""For one more the oldest is dropped that has not asked yet; if all have, it waits in the kernel's queue."""
BACKLOG: Final = 256
LOOK: Final = 2.0
"""Seconds between two looks whether the socket is still there."""
_PEER: Final = struct.Struct("iII")
_SO_PEERGROUPS: Final = 59
"""Asks for the groups of who connected, beside the one of SO_PEERCRED (Linux 4.13, asm-generic/socket.h)."""
_MOST_OF_AN_OPTION: Final = 1024
"""Bytes that `getsockopt` can ask for: 256 groups."""

DENIED: Final = encode_error(
    "denied", "the master answers its own user, root, and whoever is in its group, and you are none of these"
)

Answer = Callable[[Request], Any]
"""Returns plain JSON at once, or raises a PreforkQError."""


@dataclass(slots=True)
class _Client:
    connection: socket.socket
    until: float
    incoming: bytearray = field(default_factory=bytearray)
    outgoing: memoryview | None = None
    is_denied: bool = False


class ControlServer:
    """Listens from `open` to `close`; `turn` does what can be done now."""

    def __init__(self, path: str | os.PathLike[str], events: Events) -> None:
        self._path = os.path.abspath(path)
        self._events = events
        self._listener: socket.socket | None = None
        self._lock = -1
        self._selector: selectors.EpollSelector | None = None
        self._clients: dict[int, _Client] = {}
        self._answer: Answer | None = None
        self._questions: Collection[str] = ()
        # What has been told in this turn: a hundred probes at once cost the master one status.
        self._told: dict[str, bytes] = {}
        self._is_full = False
        self._accepts_at: float | None = None
        self._looks_at = 0.0

    @property
    def path(self) -> str:
        return self._path

    def open(self) -> None:
        """Listen; whoever connects waits until `serve` was called.

        Raises:
            ConfigurationError: another master lives there, or the path cannot or must not be used.
        """
        if len(os.fsencode(self._path)) > PATH_LIMIT:
            raise ConfigurationError(
                f"ctl_socket {self._path!r} is longer than the {PATH_LIMIT} bytes "
                "that the path of a Unix socket may have"
            )
        try:
            _check_folder(os.path.dirname(self._path))
            self._lock = _lock(f"{self._path}.lock", self._path)
            self._listener = _listen(self._path)
        except OSError as error:
            self.close()
            raise ConfigurationError(f"ctl_socket {self._path!r}: {error.strerror or error}") from error
        except ConfigurationError:
            self.close()
            raise
        self._selector = selectors.EpollSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def serve(self, answer: Answer, questions: Collection[str] = ()) -> None:
        """Say who answers, and which commands without arguments are answered alike within a turn."""
        self._answer = answer
        self._questions = questions

    def fileno(self) -> int:
        """One descriptor for all connections; readable when `turn` has something to do."""
        return self._selector.fileno() if self._selector is not None else -1

    def next_deadline(self) -> float | None:
        """When `turn` has something to do although nothing came in, monotonic time; None for never."""
        times = [client.until for client in self._clients.values()]
        if self._accepts_at is not None:
            times.append(self._accepts_at)
        return min(times, default=None)

    def turn(self) -> None:
        """Accept, read, answer and write what is possible now."""
        if self._selector is None:
            return
        self._told.clear()
        for key, _ in self._selector.select(0):
            if key.data is None:
                self._accept()
            elif (client := self._clients.get(key.fd)) is not None and client is key.data:
                # Who was dropped in this turn may have left the number to somebody else.
                self._advance(client)
        now = time.monotonic()
        if self._accepts_at is not None and self._accepts_at <= now:
            self._accepts_at = None
            self._listen_again(True)
        for client in [client for client in self._clients.values() if client.until <= now]:
            self._drop(client)
        if now >= self._looks_at:
            self._looks_at = now + LOOK
            self._look()

    def close(self) -> None:
        """Hang up, remove the socket, and let go of the lock. Again is allowed."""
        for client in list(self._clients.values()):
            self._drop(client)
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            # Ours, since the lock is still held.
            if os.path.lexists(self._path):
                os.unlink(self._path)
        if self._selector is not None:
            self._selector.close()
            self._selector = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _accept(self) -> None:
        # Bounded, so that a crowd that keeps coming does not hold the loop.
        for _ in range(MAX_CLIENTS):
            if self._listener is None or self._selector is None:
                return
            if not self._has_room():
                self._listen_again(False)
                return
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if self._accepts_at is None:
                    self._events.emit("control_not_accepting", level="debug", error=str(error))
                self._listen_again(False)
                self._accepts_at = time.monotonic() + BREATH
                return
            connection.setblocking(False)
            client = _Client(connection, until=time.monotonic() + TIME_LIMIT)
            if not _is_allowed(connection):
                client.is_denied = True
                self._events.emit("control_refused", level="warning", uid=_peer(connection)[1])
            self._clients[connection.fileno()] = client
            self._selector.register(connection, selectors.EVENT_READ, client)
            self._advance(client)

    def _has_room(self) -> bool:
        """Tell whether one more can be let in, after dropping the oldest that says nothing if need be."""
        if len(self._clients) < MAX_CLIENTS:
            return True
        for client in list(self._clients.values()):
            # Its request may have come by now.
            self._advance(client)
            if client.outgoing is None and client.connection.fileno() >= 0:
                self._drop(client)
            if len(self._clients) < MAX_CLIENTS:
                return True
        return False

    def _advance(self, client: _Client) -> None:
        try:
            if client.outgoing is None:
                self._read(client)
            if client.outgoing is not None:
                self._write(client)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)

    def _read(self, client: _Client) -> None:
        """Take in a request; with its end, prepare the answer."""
        while client.outgoing is None:
            data = client.connection.recv(MAX_REQUEST)
            client.incoming += data
            line, newline, _ = client.incoming.partition(b"\n")
            if len(line) + len(newline) > MAX_REQUEST:
                client.outgoing = memoryview(
                    encode_error("too_large", f"a request has at most {MAX_REQUEST} bytes")
                )
            elif newline and _is_gone(client.connection):
                # While this master was stopped, say: whoever asked was told that it has timed out.
                raise ConnectionAbortedError
            elif newline:
                answer = DENIED if client.is_denied else self._answer_to(bytes(line))
                client.outgoing = memoryview(answer)
            elif not data:
                raise ConnectionAbortedError

    def _write(self, client: _Client) -> None:
        while client.outgoing:
            try:
                sent = client.connection.send(client.outgoing, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                if self._selector is not None:
                    self._selector.modify(client.connection, selectors.EVENT_WRITE, client)
                raise
            client.outgoing = client.outgoing[sent:]
        self._drop(client)

    def _answer_to(self, line: bytes) -> bytes:
        try:
            request = decode_request(line)
            if self._answer is None:
                return encode_error("unavailable", "the master is only just starting")
            is_shared = request.command in self._questions and not request.arguments
            if is_shared and request.command in self._told:
                return self._told[request.command]
            told = encode_data(self._answer(request))
            if is_shared:
                self._told[request.command] = told
            else:
                self._told.clear()
            return told
        except PreforkQError as error:
            return encode_error(error.code, str(error))
        except Exception as error:
            # A mistake in one answer must not end the master; it is told to both sides.
            self._events.emit("control_failed", level="error", error=f"{type(error).__name__}: {error}")
            return encode_error("internal", f"{type(error).__name__}: {error}")

    def _drop(self, client: _Client) -> None:
        self._clients.pop(client.connection.fileno(), None)
        if self._selector is not None:
            self._selector.unregister(client.connection)
        client.connection.close()
        if self._accepts_at is None:
            self._listen_again(True)

    def _look(self) -> None:
        """Listen anew if somebody has removed the socket, as those do who clean up folders.

        Whoever asks would be told that no master runs.
        """
        if self._listener is None or self._selector is None or os.path.lexists(self._path):
            return
        lock = -1
        try:
            if not os.path.lexists(f"{self._path}.lock"):
                lock = _lock(f"{self._path}.lock", self._path)
            listener = _listen(self._path)
        except (OSError, ConfigurationError) as error:
            # Another may live there by now, or the folder is gone.
            if lock >= 0:
                os.close(lock)
            self._events.emit("control_not_listening", level="debug", error=str(error))
            return
        if lock >= 0:
            os.close(self._lock)
            self._lock = lock
        if not self._is_full:
            self._selector.unregister(self._listener)
            self._selector.register(listener, selectors.EVENT_READ)
        self._listener.close()
        self._listener = listener
        self._events.emit("control_listens_again", level="warning", path=self._path)

    def _listen_again(self, wanted: bool) -> None:
        """Stop or go on accepting: a full house would otherwise wake the loop all the time."""
        if self._listener is None or self._selector is None or self._is_full != wanted:
            return
        self._is_full = not wanted
        if wanted:
            self._selector.register(self._listener, selectors.EVENT_READ)
        else:
            self._selector.unregister(self._listener)


def _check_folder(folder: str) -> None:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    status = os.stat(folder)
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigurationError(f"ctl_socket: {folder!r} belongs to another user (uid {status.st_uid})")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise ConfigurationError(f"ctl_socket: {folder!r} is writable by everybody; choose a private folder")


def _lock(path: str, socket_path: str) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ConfigurationError(
            f"another master answers at {socket_path!r}; stop it, or choose another --ctl-socket"
        ) from error
    return descriptor


def _listen(path: str) -> socket.socket:
    """Replace what a dead master left; we hold the lock."""
    if os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise ConfigurationError(f"ctl_socket {path!r} exists and is no socket")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Under its name only once it listens: whoever sees the socket is not refused.
    new = os.path.join(os.path.dirname(path), f".{os.getpid()}")
    umask = os.umask(0o117)
    try:
        if os.path.lexists(new):
            os.unlink(new)
        listener.bind(new)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        os.rename(new, path)
    except OSError:
        listener.close()
        if os.path.lexists(new):
            os.unlink(new)
        raise
    finally:
        os.umask(umask)
    return listener


def _peer(connection: socket.socket) -> tuple[int, int, int]:
    """Return pid, uid and gid of who connected (SO_PEERCRED, unix(7))."""
    pid, uid, gid = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, uid, gid


def _groups(connection: socket.socket) -> set[int]:
    """Return the groups of who connected; of one that has over 256 only its first."""
    _, _, gid = _peer(connection)
    try:
        others = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_OF_AN_OPTION)
    except OSError:
        return {gid}
    return {gid, *memoryview(others).cast("I")}


def _is_allowed(connection: socket.socket) -> bool:
    _, uid, _ = _peer(connection)
    return uid in (0, os.geteuid()) or os.getegid() in _groups(connection)


def _is_gone(connection: socket.socket) -> bool:
    """Whether the peer has closed its socket, not only its sending half."""
    poller = select.poll()
    poller.register(connection, 0)
    return bool(poller.poll(0))
