"""One client of the server: what it may take its time for, and how it is answered and left.

Runs in the api process: requests are read in the main thread, answered in others.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from waitress.channel import HTTPChannel
from waitress.task import ErrorTask, WSGITask

from prefork_q.api.application import Application
from prefork_q.api.framing import StrictParser
from prefork_q.api.problems import Problem

LINGER = 1.0
"""Seconds of a drain in which the first request of a new connection may still begin: its client has just been
let in, and would be sent away without a word."""

STALL = 2.0
"""Seconds without a byte after which a drain gives up a request that has begun to arrive. One that goes on
arriving may take its time, as at any other time."""

PARTING = 3.0
"""Seconds for which the rest of a refused request is read and thrown away. Closed at once, a connection
with unread data is reset, and a client that still sends does not see why (RFC 9112, 9.6)."""

RECEIVED = 65_536
"""Bytes that are thrown away at a time."""

UNSENT = 65_536
"""Bytes of answers that may wait for the client before its next request is answered: one who asks much and
reads nothing shall not fill the memory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may ask of the server: sizes in bytes, times in seconds.

    `request_time` runs from a request's first byte to its last, so that a client that trickles
    holds a connection for so long and no thread. `idle_time` is for connections that say nothing,
    `silent_time` for those that have never said anything, `unread_time` for those that take nothing of what
    they have asked for.
    """

    body: int
    header: int = 32_768
    threads: int = 32
    connections: int = 1_000
    request_time: float = 30.0
    idle_time: float = 75.0
    silent_time: float = 10.0
    unread_time: float = 30.0


class InOnePiece:
    """Writes header and body together: one system call and one packet for an answer that fits."""

    complete: bool
    wrote_header: bool
    has_body: bool
    content_length: int | None
    content_bytes_written: int
    channel: Any
    build_response_header: Callable[[], bytes]

    def write(self, data: bytes) -> None:
        is_all = self.content_length == len(data) > 0 and self.has_body
        if self.wrote_header or not self.complete or not is_all:
            super().write(data)  # type: ignore[misc]
            return
        answer = self.build_response_header() + data
        self.wrote_header = True
        self.content_bytes_written = len(data)
        self.channel.write_soon(answer)


class Task(InOnePiece, WSGITask):  # type: ignore[misc]
    """One request being answered."""

    def build_response_header(self) -> bytes:
        if self.channel.server.is_draining:
            self.set_close_on_finish()
        header: bytes = super().build_response_header()
        return header


class Refused(InOnePiece, ErrorTask):  # type: ignore[misc]
    """A request that is answered with a refusal, after which the connection closes."""

    def execute(self) -> None:
        self.channel.is_refused = True
        super().execute()


class Connection(HTTPChannel):  # type: ignore[misc]
    """One client. Its requests are read by the loop and answered, in order, by threads.

    An answer goes into a buffer, which the loop sends: no thread ever waits for a client to read.
    """

    task_class = Task
    error_task_class = Refused
    begun: float | None = None
    """When the first byte of a request came that has not arrived whole yet (monotonic)."""
    is_new = True
    """Whether nothing has come yet."""
    is_held = False
    """Whether the next request waits for the client to read. Changes under `outbuf_lock`."""
    close_when_flushed: bool
    is_refused = False
    parts_at: float | None = None
    """When a connection closes on which everything was said (monotonic)."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.active_at = time.monotonic()
        """When bytes came or went, or an answer was ready to go, last (monotonic)."""
        super().__init__(*arguments, **options)

    def parser_class(self, adj: Any) -> StrictParser:
        """Return what reads the next request."""
        # Nothing that leads back to the connection: a cycle would keep a closed one and its body for long.
        return StrictParser(adj, partial(judged, self.server.application, self.addr[0]))

    def received(self, data: bytes) -> bool:
        before = self.request
        taken: bool = super().received(data)
        self.is_new = False
        self.active_at = time.monotonic()
        if self.request is None:
            self.begun = None
        elif self.begun is None or self.request is not before:
            self.begun = self.active_at
        return taken

    def hold(self) -> bool:
        """Tell whether the next request has to wait until the client has read; then the loop goes on with it.

        Called by whoever would hand the request to a thread.
        """
        with self.outbuf_lock:
            self.is_held = self.connected and self.total_outbufs_len > UNSENT
            return self.is_held

    def write_soon(self, data: bytes) -> int:
        self.active_at = time.monotonic()
        written: int = super().write_soon(data)
        return written

    def _flush_some(self, do_close: bool = True) -> bool:
        has_sent: bool = super()._flush_some(do_close)
        if has_sent:
            self.active_at = time.monotonic()
        return has_sent

    def _flush_outbufs_below_high_watermark(self) -> None:
        """Not wait for the client to read: each answer is one piece, and the next one is held back."""

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
            self._release()
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

    def handle_close(self) -> None:
        super().handle_close()
        # Without the lock, which may be held by whoever has just found that the client is gone.
        if self.request is not None:
            self.request.close()
        self._release()

    def _release(self) -> None:
        """Go on with the request that was held, if the client has read or is gone."""
        if self.is_held and not self.hold():
            self.server.add_task(self)

    def check_client_disconnected(self) -> bool:
        """Whether the client has closed its end. Called by the thread that answers its request.

        Nothing is read from a connection while its request is answered (then a client may close the
        sending half and still wait), so whoever answers slowly has to look for himself. Behind further
        requests the end cannot be read yet; poll tells of it (POLLRDHUP).
        """
        sock = self.socket
        if not self.connected or sock is None or (descriptor := sock.fileno()) < 0:
            return True
        poller = select.poll()
        poller.register(descriptor, select.POLLRDHUP)
        return bool(poller.poll(0))

    def is_overdue(self, limits: Limits) -> bool:
        """Whether the client has had its time: to say what it wants, or to take its answer."""
        # In this order: a thread takes its request off the list after its answer is in the buffer.
        is_asking = bool(self.requests)
        if self.total_outbufs_len:
            return time.monotonic() - self.active_at > limits.unread_time
        if is_asking:
            return False
        now = time.monotonic()
        if self.parts_at is not None:
            return now > self.parts_at
        if self.begun is not None:
            return now - self.begun > limits.request_time
        return now - self.active_at > (limits.silent_time if self.is_new else limits.idle_time)

    def is_idle(self) -> bool:
        """Whether a drain need not wait. Called by the loop, which alone hands requests to threads."""
        if self._is_answered:
            return False
        silence = time.monotonic() - self.active_at
        if self.is_new:
            return silence > LINGER
        return not self._is_arriving or silence > STALL

    def is_owed(self) -> bool:
        """Whether the client has asked for something, in full or in part, and has not got it yet."""
        return self._is_answered or self._is_arriving

    @property
    def _is_answered(self) -> bool:
        # In this order, as in `is_overdue`.
        return bool(self.requests or self.total_outbufs_len)

    @property
    def _is_arriving(self) -> bool:
        return self.begun is not None and self.parts_at is None


def judged(application: Application, address: str, request: StrictParser) -> Problem | None:
    """Return why a request is refused whatever its body says: nobody shall send megabytes for a 401."""
    fields = {f"HTTP_{name}": value for name, value in request.headers.items()}
    return application.refusal(
        {
            "REQUEST_METHOD": request.command.upper(),
            "PATH_INFO": request.path,
            "REMOTE_ADDR": address,
            **fields,
        }
    )
