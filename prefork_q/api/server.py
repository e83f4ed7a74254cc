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
from typing import Any

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.server import TcpWSGIServer, UnixWSGIServer
from waitress.task import ThreadedTaskDispatcher

from prefork_q.api.application import Application
from prefork_q.api.connection import Connection, Limits
from prefork_q.api.health import ALIVE

__all__ = ["Limits", "Server"]

TURN = 1.0
"""Seconds that the loop sleeps at most: its beat, and how finely time limits are kept."""

RESERVED_DESCRIPTORS = 128
"""Descriptors kept for what the process has open, and for what each thread asks Redis and the master."""
PER_CONNECTION = 2
"""Descriptors of a connection: its socket, and a temporary file for a large body or a large answer."""


class Listener:
    """What our listening sockets do beyond waitress's; mixed into its two classes below."""

    channel_class = Connection
    is_draining = False
    limits: Limits
    probes: ThreadedTaskDispatcher
    """Answers the one probe that must not wait for a thread."""
    task_dispatcher: ThreadedTaskDispatcher
    socket: Any
    accepting: bool
    active_channels: dict[int, Connection]
    del_channel: Callable[[], None]

    def add_task(self, connection: Connection) -> None:
        """Let a thread answer the first request of a connection, once the client has read earlier answers."""
        if connection.hold():
            return
        is_probe = connection.requests[0].path == ALIVE and len(connection.requests) == 1
        (self.probes if is_probe else self.task_dispatcher).add_task(connection)

    def maintenance(self, now: float) -> None:
        """Close the connections that have had their time. Called once a turn, by the loop."""
        for connection in list(self.active_channels.values()):
            if connection.is_overdue(self.limits):
                # At once: with will_close waitress would wait until the client reads.
                connection.handle_close()

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
    """Serves the application on sockets that already listen."""

    def __init__(
        self,
        application: Application,
        sockets: Iterable[socket.socket],
        limits: Limits,
        *,
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        self._application = application
        self._map: dict[int, Any] = {}
        self._limits = limits
        self._on_turn = on_turn
        self._deadline: float | None = None
        self._patient_until = 0.0
        self._cut = 0
        self._threads = ThreadedTaskDispatcher()
        self._threads.set_thread_count(limits.threads)
        self._probes = ThreadedTaskDispatcher()
        self._probes.set_thread_count(1)
        adjustments = Adjustments(
            ident="prefork-q",
            max_request_body_size=limits.body + 1,
            max_request_header_size=limits.header,
            connection_limit=_affordable(limits.connections),
            cleanup_interval=1,
            log_socket_errors=False,
            clear_untrusted_proxy_headers=False,
        )
        self._listeners = [self._listen(one, adjustments) for one in sockets]

    def watch(self, fd: int, on_readable: Callable[[], None]) -> None:
        """Call `on_readable` in the loop whenever `fd` is readable or its other end is closed."""
        self._map[fd] = Watched(on_readable)

    def unwatch(self, fd: int) -> None:
        self._map.pop(fd, None)

    @property
    def is_draining(self) -> bool:
        return self._deadline is not None

    def drain(self, seconds: float, patience: float = 0.0) -> None:
        """Accept nothing more, and let `run` end once all is answered, in `seconds` at the latest.

        For `patience` seconds a request is also taken on a connection that is open already, as the last one
        there: its client may be just about to send it, and would find the connection closed.

        Called in the loop. A later call replaces the times of an earlier one.
        """
        self._patient_until = time.monotonic() + patience
        if not self.is_draining:
            for listener in self._listeners:
                listener.stop_accepting()
            self._application.close()
        self._deadline = time.monotonic() + seconds

    def run(self) -> int:
        """Serve until drained. Returns how many connections were cut off before their answer."""
        while self._deadline is None:
            self._turn(TURN)
        while self._close_idle() and (left := self._deadline - time.monotonic()) > 0:
            patience = self._patient_until - time.monotonic()
            self._turn(min(TURN, left, patience) if patience > 0 else min(TURN, left))
        return self._cut + sum(1 for _ in self._connections())

    def _turn(self, seconds: float) -> None:
        wasyncore.poll2(seconds, self._map)
        self._on_turn()

    def _close_idle(self) -> bool:
        """Close what closing does not harm. Returns whether anything is left."""
        is_any_left = False
        is_patient = time.monotonic() < self._patient_until
        for connection in list(self._connections()):
            if connection.is_overdue(self._limits) or (connection.is_idle() and not is_patient):
                self._cut += connection.is_owed()
                connection.handle_close()
            else:
                is_any_left = True
        return is_any_left

    def _connections(self) -> Iterator[Connection]:
        for listener in self._listeners:
            yield from listener.active_channels.values()

    def _listen(self, sock: socket.socket, adjustments: Adjustments) -> TcpListener | UnixListener:
        kind = UnixListener if sock.family == socket.AF_UNIX else TcpListener
        listener = kind(
            self._application,
            self._map,
            True,
            sock,
            dispatcher=self._threads,
            adj=adjustments,
            bind_socket=False,
            sockinfo=(sock.family, sock.type, sock.proto, sock.getsockname()),
        )
        listener.limits = self._limits
        listener.probes = self._probes
        return listener


def _affordable(connections: int) -> int:
    """Raise the limit of descriptors as far as so many connections need, and return how many can be had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = PER_CONNECTION * connections + RESERVED_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    limit = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return max(16, min(connections, (limit - RESERVED_DESCRIPTORS) // PER_CONNECTION))
