"""Connections to Redis, with our own time limits and no retries by the library.

- `connect` makes a client for callers that wait for their answers; scripts take a short way through it.
- `Link` is one raw connection for loops that poll: send now, receive when its socket is readable.
  A loop that must not wait for it either has `nonblocking.NonblockingLink`.
- `as_unavailable` turns the library's errors into `Unavailable` with a bounded word for metrics.

A command is repeated by whoever knows that repeating it is safe, never by the library: its
retries and its socket timeout are unsuited to blocking reads and to scripts.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)
from redis.retry import Retry as LibraryRetry

from prefork_q.addresses import is_sentinel_url
from prefork_q.errors import ConfigurationError, Unavailable
from prefork_q.sentinels import found_by_sentinels

COMMAND_TIMEOUT = 5.0
"""Seconds that a command may take, the connect included."""

KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}
"""A peer that vanished without a word is noticed after 25 s, also by a connection that only reads."""

__all__ = [
    "COMMAND_TIMEOUT",
    "Link",
    "NoScriptError",
    "RedisError",
    "as_unavailable",
    "connect",
    "raw_connection",
    "redis",
]


def connect(url: str, *, timeout: float = COMMAND_TIMEOUT, max_connections: int = 100) -> redis.Redis:
    """Return a client for `url`. It connects with its first command.

    Raises:
        ConfigurationError: the URL is not one of those that `option_types` accepts.
    """
    return _Client(connection_pool=_pool(url, timeout, max_connections))


class _Client(redis.Redis):
    """The library's client, with a shorter way for scripts: half of the processor time of a call that
    stores one task would go into the library's pool, retries and metrics. Safe to share between threads.

    The connections that scripts use are the pool's, which counts, bounds and closes them, but they stay
    here between two calls.
    """

    def __init__(self, *, connection_pool: redis.ConnectionPool) -> None:
        super().__init__(connection_pool=connection_pool)
        self._idle: deque[tuple[Any, float]] = deque()
        """With the monotonic time at which each was used last."""

    def execute_command(self, *command: Any, **options: Any) -> Any:
        """Carry out one command; raises the library's errors."""
        if command[0] not in _SCRIPTS:
            return super().execute_command(*command, **options)  # type: ignore[no-untyped-call]
        packed = (_pack(command),)
        connection = self._take()
        try:
            connection.send_packed_command(packed, check_health=False)
            return connection.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            if as_unavailable(error).kind == "readonly":
                self._begin_anew(connection)
            raise
        except redis.TimeoutError:
            # Those that wait may be as dead without a word: one call shall have waited in vain, not each.
            self._begin_anew(connection)
            raise
        except BaseException:
            # An answer that still comes would be taken for that to the next call.
            connection.disconnect()
            raise
        finally:
            self._idle.append((connection, time.monotonic()))

    def _begin_anew(self, connection: Any) -> None:
        """Drop this connection and those that wait. To a primary that is none any more, say: by now the
        address may lead to another server, which only a new connection finds."""
        idle = []
        with suppress(IndexError):
            while True:
                idle.append(self._idle.pop())
        connection.disconnect()
        for one, _ in idle:
            one.disconnect()
        self._idle.extend(idle)

    def in_turn(self, commands: Iterable[Sequence[Any]]) -> Iterator[Any]:
        """Carry out scripts one after the other; each is made and sent while the server is at the one before.

        Yields their answers in order, and raises the library's errors: what then was sent and not
        answered may have been done.
        """
        connection = self._take()
        under_way = 0
        try:
            for command in commands:
                connection.send_packed_command((_pack(tuple(command)),), check_health=False)
                under_way += 1
                if under_way == 2:
                    answer = connection.read_response(disable_decoding=True)
                    under_way = 1
                    yield answer
            if under_way:
                answer = connection.read_response(disable_decoding=True)
                under_way = 0
                yield answer
        finally:
            if under_way:
                connection.disconnect()
            self._idle.append((connection, time.monotonic()))

    def _take(self) -> Any:
        try:
            connection, used_at = self._idle.pop()
        except IndexError:
            return self.connection_pool.get_connection()
        if connection.pid != os.getpid():
            # It came over a fork, and is the parent's.
            self._idle.clear()
            return self.connection_pool.get_connection()
        if time.monotonic() - used_at < FRESH:
            return connection
        if connection.is_connected and _is_readable(connection._get_socket()):
            # Nothing was asked: it was closed, or it is out of step.
            connection.disconnect()
        return connection


FRESH = 0.01
"""Seconds after its last use in which a connection is used again without a look at it, which is a system
call. One that was closed in that time fails the call, and whoever may repeat that gets another."""

_SCRIPTS = frozenset({b"EVALSHA", b"EVAL"})
# Typed by the package for less than it takes.
_pack: Any = hiredis.pack_command


def _is_readable(sock: socket.socket) -> bool:
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


def _pool(url: str, timeout: float, max_connections: int) -> redis.ConnectionPool:
    options: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": LibraryRetry(NoBackoff(), 0),
        "protocol": 2,
        "driver_info": None,
    }
    if not url.startswith("unix:"):
        options |= {"socket_keepalive": True, "socket_keepalive_options": KEEPALIVE}
    if url.startswith("rediss:"):
        options["redis_connect_func"] = _greet
    try:
        if is_sentinel_url(url):
            return redis.ConnectionPool(
                max_connections=max_connections, **options | found_by_sentinels(url, timeout)
            )
        return redis.ConnectionPool.from_url(url, max_connections=max_connections, **options)
    except (ValueError, TypeError) as error:
        # The library's text repeats the URL, and the URL may hold a password.
        raise ConfigurationError(
            "the Redis URL cannot be read: it must look like redis://HOST:PORT/DB, rediss://…, "
            "unix://PATH or redis+sentinel://HOST:PORT,…/SERVICE/DB"
        ) from error


def _greet(connection: Any) -> None:
    """Log in, and exchange one word with a server behind TLS, as a part of connecting.

    With it comes what TLS itself still has to say: tickets, which make a socket look as if an answer had
    come, or the refusal of a certificate, which would seem to be the trouble of a later command.
    """
    try:
        connection.on_connect()
        connection.send_command("PING", check_health=False)
        connection.read_response()
    except redis.ConnectionError as error:
        if type(error) is not redis.ConnectionError:
            raise
        # It refuses a certificate after its part of the handshake, and its reason may arrive or not.
        raise redis.ConnectionError(
            f"{connection.host}:{connection.port} has ended the connection after the TLS handshake, as "
            f"servers do that want a client's certificate (ssl_certfile, ssl_keyfile): {error}"
        ) from error


def raw_connection(url: str, timeout: float) -> Any:
    """Return one connection of the library, not connected yet; the library leaves it untyped.

    Raises:
        ConfigurationError: the URL is wrong.
    """
    return _pool(url, timeout, 1).make_connection()


class Link:
    """One connection for a loop that polls. At most one command is under way at a time.

    Used by one thread. `receive` after the socket became readable waits for the rest of the
    answer, at most `timeout` seconds.
    """

    def __init__(self, url: str, *, timeout: float = COMMAND_TIMEOUT) -> None:
        self._connection = raw_connection(url, timeout)
        self.is_waiting = False
        """Whether a command was sent whose answer has not been received."""

    @property
    def is_connected(self) -> bool:
        return bool(self._connection.is_connected)

    def connect(self) -> None:
        """Connect, authenticate and select the database.

        Raises:
            Unavailable: it did not work.
        """
        self.is_waiting = False
        try:
            self._connection.connect()
        except (RedisError, OSError) as error:
            self.close()
            raise as_unavailable(error) from error

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 when not connected."""
        sock = self._connection._get_socket()
        return -1 if sock is None else int(sock.fileno())

    def send(self, *command: object) -> None:
        """Send one command.

        Raises:
            Unavailable: the connection is gone; whether the command arrived is not known.
        """
        try:
            self._connection.send_packed_command(self._connection.pack_command(*command), check_health=False)
        except (RedisError, OSError) as error:
            self.close()
            raise as_unavailable(error) from error
        self.is_waiting = True

    def receive(self) -> Any:
        """Return the answer to the command under way, as bytes, integers and lists.

        Raises:
            NoScriptError: the server does not know the script; nothing was done.
            Unavailable: the answer did not come, or Redis refused.
        """
        self.is_waiting = False
        try:
            return self._connection.read_response(disable_decoding=True)
        except NoScriptError:
            raise
        except (RedisError, OSError) as error:
            # After a refusal the connection would still be good, but what refuses may be an old
            # primary or a server about to go: begin anew.
            self.close()
            raise as_unavailable(error) from error

    def has_answer(self) -> bool:
        """Tell whether something can be received now: for a subscribed connection, which gets many.

        Raises:
            Unavailable: the connection is gone.
        """
        if not self.is_connected:
            return False
        try:
            return bool(self._connection.can_read(timeout=0))
        except (RedisError, OSError) as error:
            self.close()
            raise as_unavailable(error) from error

    def close(self) -> None:
        self.is_waiting = False
        self._connection.disconnect()


_DEMOTED = ("READONLY", "MASTERDOWN", "UNBLOCKED")
"""Words of a server that is no primary; the last one is for who blocks when it becomes a replica."""


def as_unavailable(error: BaseException) -> Unavailable:
    """Return what a trouble with Redis means to a caller; `kind` is one of a few words."""
    text = str(error)
    if isinstance(error, BusyLoadingError) or "LOADING" in text:
        return Unavailable(f"Redis is loading its data: {text}", kind="loading", retry_after=2)
    if isinstance(error, redis.exceptions.TimeoutError | TimeoutError):
        return Unavailable(f"Redis did not answer in time: {text}", kind="timeout", retry_after=2)
    # The library takes the first word off an error that it has a class for.
    if isinstance(error, ReadOnlyError | MasterDownError) or any(word in text for word in _DEMOTED):
        return Unavailable(
            "Redis is a read-only replica; waiting for a primary", kind="readonly", retry_after=2
        )
    if isinstance(error, OutOfMemoryError) or "OOM command not allowed" in text:
        return Unavailable(
            "Redis is full (maxmemory is reached): make room or raise maxmemory", kind="full", retry_after=5
        )
    if "MISCONF" in text:
        return Unavailable(f"Redis refuses writes: {text}", kind="full", retry_after=5)
    if isinstance(error, NoPermissionError | AuthenticationError):
        return Unavailable(f"Redis denies access: {text}", kind="denied", retry_after=5)
    if "max number of clients" in text:
        return Unavailable("Redis has no room for another client (maxclients)", kind="busy", retry_after=2)
    if text.startswith("BUSY "):
        return Unavailable("Redis is busy with another script", kind="busy", retry_after=2)
    if isinstance(error, redis.exceptions.ConnectionError | OSError):
        return Unavailable(f"Redis cannot be reached: {text}", kind="connection")
    return Unavailable(f"Redis refused: {text}", kind="other", retry_after=2)
