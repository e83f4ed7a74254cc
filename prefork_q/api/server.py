"""The HTTP server of an api process: waitress's parts under a loop of our own.

The loop also watches the master's channel, closes what takes too long to say what it wants, and
drains: it stops accepting, lets requests in flight be answered, and ends within a bound.

Runs in the api process, main thread; requests are answered by its threads.
"""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer, UnixWSGIServer
from waitress.task import ErrorTask, ThreadedTaskDispatcher, WSGITask

from prefork_q.api.framing import StrictParser

TURN = 1.0
"""Seconds that the loop sleeps at most: its beat, and how finely time limits are kept."""

LINGER = 1.0
"""Seconds of a drain in which a request that has begun to arrive may still arrive whole."""

PARTING = 3.0
"""Seconds for which the rest of a refused request is read and thrown away. Closed at once, a connection
with unread data is reset, and a client that still sends does not see why (RFC 9112, 9.6)."""

RECEIVED = 65_536
"""Bytes that are thrown away at a time."""

RESERVED_DESCRIPTORS = 64
"""Descriptors kept for Redis, for bodies in temporary files and for what the process has open."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may ask of the server: sizes in bytes, times in seconds.

    `request_time` runs from a request's first byte to its last, so that a client that trickles
    holds a connection for so long and no thread; `idle_time` is for connections that say nothing.
    """

    body: int
    header: int = 32_768
    threads: int = 32
    connections: int = 1_000
    request_time: float = 30.0
    idle_time: float = 75.0


class Task(WSGITask):  # type: ignore[misc]
    """One request being answered."""

    def build_response_header(self) -> bytes:
        if self.channel.server.is_draining:
            self.set_close_on_finish()
        header: bytes = super().build_response_header()
        return header


class Refused(ErrorTask):  # type: ignore[misc]
    """A request that is answered with a refusal, after which the connection closes."""

    def execute(self) -> None:
        self.channel.is_refused = True
        super().execute()


class Connection(HTTPChannel):  # type: ignore[misc]
    """One client. Its requests are read by the loop and answered, in order, by threads."""

    parser_class = StrictParser
    task_class = Task
    error_task_class = Refused
    begun: float | None = None
    """When the first byte of a request came that has not arrived whole yet (monotonic)."""
    close_when_flushed: bool
    is_refused = False
    parts_at: float | None = None
    """When a connection closes on which everything was said (monotonic)."""

    def received(self, data: bytes) -> bool:
        taken: bool = super().received(data)
        if self.request is None:
            self.begun = None
        elif self.begun is None:
            self.begun = time.monotonic()
        return taken

    def readable(self) -> bool:
        return not self.will_close if self.parts_at is not None else bool(super().readable())

    def writable(self) -> bool:
        return bool(self.will_close) if self.parts_at is not None else bool(super().writable())

    def handle_read(self) -> None:
        if self.parts_at is not None:
            # Closes the connection at the end of what the client sends.
            self.recv(RECEIVED)
        else:
            super().handle_read()

    def handle_write(self) -> None:
        if not (self.is_refused and self.close_when_flushed):
            super().handle_write()
            return
        self._flush_exception(self._flush_some)
        if self.connected and not self.total_outbufs_len:
            self.close_when_flushed = False
            self.parts_at = time.monotonic() + PARTING
            try:
                self.socket.shutdown(socket.SHUT_WR)
            except OSError:
                # The client was quicker.
                self.will_close = True

    def check_client_disconnected(self) -> bool:
        """Whether the client has closed its end. Called by the thread that answers its request.

        Nothing is read from a connection while its request is answered (then a client may close the
        sending half and still wait), so whoever answers slowly has to look for himself.
        """
        if not self.connected:
            return True
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def is_overdue(self, limits: Limits) -> bool:
        """Whether the client has had its time, and no answer is being made."""
        if self.requests:
            return False
        now = time.monotonic()
        if self.parts_at is not None:
            return now > self.parts_at
        if self.begun is not None:
            return now - self.begun > limits.request_time
        return bool(time.time() - self.last_activity > limits.idle_time)

    def is_idle(self) -> bool:
        """Whether closing loses nothing. Called by the loop, which alone hands requests to threads."""
        # In this order: a thread takes its request off the list after its answer is in the buffer.
        if self.requests or self.total_outbufs_len:
            return False
        is_waiting = self.begun is not None and self.parts_at is None
        return not is_waiting or time.monotonic() - (self.begun or 0.0) > LINGER


class Listener:
    """What our listening sockets do beyond waitress's; mixed into its two classes below."""

    channel_class = Connection
    is_draining = False
    limits: Limits
    socket: Any
    accepting: bool
    active_channels: dict[int, Connection]
    del_channel: Callable[[], None]

    def maintenance(self, now: float) -> None:
        """Close the connections that have had their time. Called once a turn, by the loop."""
        for connection in list(self.active_channels.values()):
            if connection.is_overdue(self.limits):
                connection.will_close = True

    def stop_accepting(self) -> None:
        """Leave further connections to the other processes that have this socket."""
        self.is_draining = True
        self.accepting = False
        self.del_channel()
        self.socket.close()


class TcpListener(Listener, TcpWSGIServer):  # type: ignore[misc]
    """A listening TCP socket."""


class UnixListener(Listener, UnixWSGIServer):  # type: ignore[misc]
    """A listening Unix socket."""


class Watched:
    """Another descriptor in the loop; what waitress's loop asks of its members."""

    accepting = False

    def __init__(self, on_readable: Callable[[], None]) -> None:
        self._on_readable = on_readable

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def handle_read_event(self) -> None:
        self._on_readable()

    def handle_expt_event(self) -> None:
        """Nothing is sent out of band."""

    def handle_close(self) -> None:
        self._on_readable()

    def handle_error(self) -> None:
        raise


class Server:
    """Serves a WSGI application on sockets that already listen."""

    def __init__(
        self,
        application: Callable[..., Iterable[bytes]],
        sockets: Iterable[socket.socket],
        limits: Limits,
        *,
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        self._map: dict[int, Any] = {}
        self._limits = limits
        self._on_turn = on_turn
        self._deadline: float | None = None
        self._threads = ThreadedTaskDispatcher()
        self._threads.set_thread_count(limits.threads)
        adjustments = Adjustments(
            ident="prefork-q",
            max_request_body_size=limits.body + 1,
            max_request_header_size=limits.header,
            connection_limit=_affordable(limits.connections),
            cleanup_interval=1,
            log_socket_errors=False,
            clear_untrusted_proxy_headers=False,
        )
        self._listeners = [self._listen(application, one, adjustments) for one in sockets]

    def watch(self, fd: int, on_readable: Callable[[], None]) -> None:
        """Call `on_readable` in the loop whenever `fd` is readable or its other end is closed."""
        self._map[fd] = Watched(on_readable)

    def unwatch(self, fd: int) -> None:
        self._map.pop(fd, None)

    @property
    def is_draining(self) -> bool:
        return self._deadline is not None

    def drain(self, seconds: float) -> None:
        """Accept nothing more, and let `run` end once all is answered, in `seconds` at the latest.

        Called in the loop. A later call replaces the time of an earlier one.
        """
        if not self.is_draining:
            for listener in self._listeners:
                listener.stop_accepting()
        self._deadline = time.monotonic() + seconds

    def run(self) -> int:
        """Serve until drained. Returns how many connections were cut off before their answer."""
        while self._deadline is None:
            self._turn(TURN)
        while self._close_idle() and (left := self._deadline - time.monotonic()) > 0:
            self._turn(min(TURN, left))
        return sum(1 for _ in self._connections())

    def _turn(self, seconds: float) -> None:
        wasyncore.poll2(seconds, self._map)
        self._on_turn()

    def _close_idle(self) -> bool:
        """Close what closing does not harm. Returns whether anything is left."""
        is_any_left = False
        for connection in list(self._connections()):
            if connection.is_idle():
                connection.handle_close()
            else:
                is_any_left = True
        return is_any_left

    def _connections(self) -> Iterator[Connection]:
        for listener in self._listeners:
            yield from listener.active_channels.values()

    def _listen(
        self, application: Callable[..., Iterable[bytes]], sock: socket.socket, adjustments: Adjustments
    ) -> TcpListener | UnixListener:
        kind = UnixListener if sock.family == socket.AF_UNIX else TcpListener
        listener = kind(
            application,
            self._map,
            True,
            sock,
            dispatcher=self._threads,
            adj=adjustments,
            bind_socket=False,
            sockinfo=(sock.family, sock.type, sock.proto, sock.getsockname()),
        )
        listener.limits = self._limits
        return listener


def _affordable(connections: int) -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    return max(16, min(connections, soft - RESERVED_DESCRIPTORS))
