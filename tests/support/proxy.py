"""A TCP proxy before a server, which can do to its connections what networks do to them.

    with Proxy(server.url) as proxy:
        node = start_node(url=proxy.url)
        proxy.swallow(TO_CLIENT)     # answers vanish, the connection stays
        proxy.heal()

One thread of its own serves all connections; every method may be called from any thread and is in force
when it returns.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from urllib.parse import urlsplit, urlunsplit

CHUNK = 65_536
BACKLOG = 4 << 20
"""Bytes that wait in the proxy before it stops reading from that side."""

TO_SERVER, TO_CLIENT = "to_server", "to_client"
BOTH = (TO_SERVER, TO_CLIENT)


@dataclass(slots=True)
class _Way:
    """One direction of all connections: what is done to its bytes."""

    is_paused: bool = False
    """Nothing is read: the sender's buffers fill."""
    is_swallowed: bool = False
    """What is sent is read and vanishes."""
    delay: float = 0.0
    """Seconds that every byte waits."""


@dataclass(slots=True, eq=False)
class _Pair:
    """A client's connection and its own to the server."""

    client: socket.socket
    server: socket.socket
    is_frozen: bool = False
    is_forgotten: bool = False
    ended: set[str] = field(default_factory=set)
    waiting: dict[str, deque[tuple[float, bytes]]] = field(
        default_factory=lambda: {TO_SERVER: deque(), TO_CLIENT: deque()}
    )

    def ends(self, way: str) -> tuple[socket.socket, socket.socket]:
        """Where the bytes of a direction come from, and where they go."""
        return (self.client, self.server) if way == TO_SERVER else (self.server, self.client)


class Proxy:
    """Listens on a loopback port of its own from the moment that it is made."""

    def __init__(self, server_url: str) -> None:
        self._server = urlsplit(server_url)
        if not self._server.port:
            raise ValueError(f"{server_url} is not the URL of a server on a TCP port")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]
        self._ways = {TO_SERVER: _Way(), TO_CLIENT: _Way()}
        self._pairs: list[_Pair] = []
        self._is_cut = False
        self._is_closed = False
        self.accepted = 0
        """Connections so far, refused ones included."""
        self._orders: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The server's URL, through this proxy."""
        _, at, _ = self._server.netloc.rpartition("@")
        login = self._server.netloc.rpartition("@")[0] + at
        return urlunsplit(self._server._replace(netloc=f"{login}127.0.0.1:{self._port}"))

    @property
    def connections(self) -> int:
        """How many are open, frozen ones included."""
        return len(self._pairs)

    # -- what happens to connections

    def pause(self, *ways: str) -> None:
        """Read nothing more in these directions (both unless given); what was sent arrives after `heal`."""
        self._order(lambda: self._set(ways, is_paused=True))

    def swallow(self, *ways: str) -> None:
        """Let vanish what is sent in these directions; connections stay, new ones are accepted."""
        self._order(lambda: self._set(ways, is_swallowed=True))

    def delay(self, seconds: float, *ways: str) -> None:
        """Hold every byte back for so long."""
        self._order(lambda: self._set(ways, delay=seconds))

    def reset(self) -> None:
        """Reset every connection that is open now; new ones pass."""
        self._order(self._reset_all)

    def freeze(self, *ports: int) -> None:
        """Let connections that are open now go dead without a word (half-open); new ones pass.

        Given ports of clients it is theirs alone, else all.
        """
        self._order(lambda: self._freeze(ports))

    def forget(self) -> None:
        """Reset connections that are open now as soon as the client says something, as a firewall does that
        has dropped them; new ones pass."""
        self._order(self._forget)

    def cut(self) -> None:
        """Reset every connection, and each new one at once, until `heal`."""

        def cut() -> None:
            self._is_cut = True
            self._reset_all()

        self._order(cut)

    def lead_to(self, server_url: str) -> None:
        """Lead new connections to another server, as a name does that was changed; open ones stay."""

        def lead() -> None:
            self._server = urlsplit(server_url)

        self._order(lead)

    def heal(self) -> None:
        """Pass everything on from now on. What was swallowed is lost, what was frozen stays dead."""

        def heal() -> None:
            self._is_cut = False
            self._ways = {TO_SERVER: _Way(), TO_CLIENT: _Way()}

        self._order(heal)

    def close(self) -> None:
        """End it and all connections. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        self._wake()
        self._thread.join(5)
        os.close(self._reader)
        os.close(self._writer)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- orders, carried out by the thread

    def _order(self, order: Callable[[], None]) -> None:
        done = threading.Event()
        self._orders.append((order, done))
        self._wake()
        if not done.wait(5):
            raise RuntimeError("the proxy's thread does not answer")

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def _set(self, ways: tuple[str, ...], **settings: float) -> None:
        for way in ways or BOTH:
            for name, value in settings.items():
                setattr(self._ways[way], name, value)

    def _reset_all(self) -> None:
        for pair in [*self._pairs]:
            self._drop(pair, is_reset=True)

    def _freeze(self, ports: tuple[int, ...]) -> None:
        for pair in self._pairs:
            pair.is_frozen |= not ports or pair.client.getpeername()[1] in ports

    def _forget(self) -> None:
        for pair in self._pairs:
            pair.is_forgotten = True

    # -- the thread

    def _run(self) -> None:
        while not self._is_closed:
            self._turn()
        self._reset_all()
        self._listener.close()

    def _turn(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._reader, selectors.EVENT_READ)
            due = self._watch(selector)
            timeout = 1.0 if due is None else max(0.0, due - time.monotonic())
            ready = {key.fileobj: events for key, events in selector.select(timeout)}
        if self._reader in ready:
            os.read(self._reader, CHUNK)
        while self._orders:
            order, done = self._orders.popleft()
            order()
            done.set()
        if self._listener in ready:
            self._accept()
        for pair in [*self._pairs]:
            self._serve(pair, ready)

    def _watch(self, selector: selectors.BaseSelector) -> float | None:
        """Say what is waited for; return the time at which held back bytes are due."""
        now, due = time.monotonic(), None
        for pair in self._pairs:
            if pair.is_frozen:
                continue
            wanted = {pair.client: 0, pair.server: 0}
            for way, state in self._ways.items():
                source, target = pair.ends(way)
                queue = pair.waiting[way]
                is_full = sum(len(data) for _, data in queue) > BACKLOG
                if not state.is_paused and way not in pair.ended and not is_full:
                    wanted[source] |= selectors.EVENT_READ
                if queue and not state.is_paused:
                    if queue[0][0] <= now:
                        wanted[target] |= selectors.EVENT_WRITE
                    else:
                        due = queue[0][0] if due is None else min(due, queue[0][0])
            for end, events in wanted.items():
                if events:
                    selector.register(end, events)
        return due

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except BlockingIOError:
            return
        self.accepted += 1
        if self._is_cut:
            _reset(client)
            return
        try:
            server = socket.create_connection((self._server.hostname, self._server.port), timeout=2)
        except OSError:  # nobody listens there, and the client is to see that
            _reset(client)
            return
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pairs.append(_Pair(client, server))

    def _serve(self, pair: _Pair, ready: dict[object, int]) -> None:
        if pair.is_frozen:
            return
        if pair.is_forgotten and ready.get(pair.client, 0) & selectors.EVENT_READ:
            self._drop(pair, is_reset=True)
            return
        now = time.monotonic()
        try:
            for way, state in self._ways.items():
                source, target = pair.ends(way)
                if ready.get(source, 0) & selectors.EVENT_READ and not state.is_paused:
                    self._read(pair, way, state, now)
                if not state.is_paused:
                    self._write(pair, way, target, now)
        except OSError:
            self._drop(pair, is_reset=True)
            return
        if len(pair.ended) == 2 and not any(pair.waiting.values()):
            self._drop(pair)

    def _read(self, pair: _Pair, way: str, state: _Way, now: float) -> None:
        if way in pair.ended:
            return
        source, _ = pair.ends(way)
        try:
            data = source.recv(CHUNK)
        except BlockingIOError:
            return
        if not data:
            pair.ended.add(way)
            pair.waiting[way].append((now + state.delay, b""))
        elif not state.is_swallowed:
            pair.waiting[way].append((now + state.delay, data))

    def _write(self, pair: _Pair, way: str, target: socket.socket, now: float) -> None:
        queue = pair.waiting[way]
        while queue and queue[0][0] <= now:
            due, data = queue[0]
            if not data:  # the end of what was sent
                target.shutdown(socket.SHUT_WR)
                queue.popleft()
                continue
            try:
                sent = target.send(data)
            except BlockingIOError:
                return
            queue.popleft()
            if sent < len(data):
                queue.appendleft((due, data[sent:]))
                return

    def _drop(self, pair: _Pair, *, is_reset: bool = False) -> None:
        if pair in self._pairs:
            self._pairs.remove(pair)
        for end in (pair.client, pair.server):
            if is_reset:
                _reset(end)
            else:
                end.close()


def _reset(end: socket.socket) -> None:
    """Close with a reset instead of an orderly end."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
