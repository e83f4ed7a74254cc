"""One client of the server: what it may take its time for, and how it is answered and left.

Runs in the api process: requests are read in the main thread, answered in others.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from waitress.channel import HTTPChannel
from waitress.task import ErrorTask, WSGITask

from prefork_q.api.framing import StrictParser
from prefork_q.api.problems import Problem

LINGER = 1.0
"""Seconds of a drain in which a request that has begun to arrive may still arrive whole, and the first one of
a new connection may still begin: its client has just been let in, and would be sent away without a word."""

PARTING = 3.0
"""Seconds for which the rest of a refused request is read and thrown away. Closed at once, a connection
with unread data is reset, and a client that still sends does not see why (RFC 9112, 9.6)."""

RECEIVED = 65_536
"""Bytes that are thrown away at a time."""


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
    """One client. Its requests are read by the loop and answered, in order, by threads."""

    task_class = Task
    error_task_class = Refused
    begun: float | None = None
    """When the first byte of a request came that has not arrived whole yet (monotonic)."""
    is_new = True
    """Whether nothing has come yet."""
    close_when_flushed: bool
    is_refused = False
    parts_at: float | None = None
    """When a connection closes on which everything was said (monotonic)."""

    def parser_class(self, adj: Any) -> StrictParser:
        """Return what reads the next request."""
        return StrictParser(adj, self._judged)

    def _judged(self, request: StrictParser) -> Problem | None:
        """Return why a request is refused whatever its body says: nobody shall send megabytes for a 401."""
        fields = {f"HTTP_{name}": value for name, value in request.headers.items()}
        problem: Problem | None = self.server.application.refusal(
            {
                "REQUEST_METHOD": request.command.upper(),
                "PATH_INFO": request.path,
                "REMOTE_ADDR": self.addr[0],
                **fields,
            }
        )
        return problem

    def received(self, data: bytes) -> bool:
        before = self.request
        taken: bool = super().received(data)
        self.is_new = False
        if self.request is None:
            self.begun = None
        elif self.begun is None or self.request is not before:
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
        if self.is_new:
            return bool(time.time() - self.creation_time > LINGER)
        is_waiting = self.begun is not None and self.parts_at is None
        return not is_waiting or time.monotonic() - (self.begun or 0.0) > LINGER
