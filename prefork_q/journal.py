"""The log where the journal listens: a datagram a line, with a priority and the fields by name.

`journalctl PREFORKQ_TASK_ID=…` then tells what became of one task. The protocol is systemd's native one
(JOURNAL_NATIVE_PROTOCOL): `NAME=value` lines, or a binary form for values of several lines; what is too long
for a datagram travels as a sealed memory file.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prefork_q.events import OUTCOME_LEVEL, Events, Level, Outcome, as_text
from prefork_q.sink import FILE_LINE_LIMIT, Sink

SOCKET: Final = "/run/systemd/journal/socket"
SEND_BUFFER: Final = 8 << 20
"""Bytes asked for: what waits while the journal is busy. The kernel gives less."""

PRIORITY: Final[Mapping[str, str]] = {"debug": "7", "info": "6", "warning": "4", "error": "3"}
"""Of our levels, as syslog(3) has them."""

NAMES: Final = {"id": "TASK_ID", "ids": "TASK_ID"}
"""Fields that are called otherwise in the journal; all get the prefix PREFORKQ_."""
LEAD: Final = len("2026-11-29T15:00:00.123Z warning ")
"""Characters of a text line that the journal has in fields of its own: the time and the level."""

SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def is_journal(environ: Mapping[str, str], fd: int = 2) -> bool:
    """Whether `fd` is connected to the journal: JOURNAL_STREAM names its device and inode (systemd.exec(5)).

    The variable alone says nothing: it is inherited by programs whose descriptors were redirected.
    """
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return (device, inode) == (str(status.st_dev), str(status.st_ino))


class JournalSink(Sink):
    """The journal's socket. Each line that it is given is a record, made by `JournalEvents`."""

    @classmethod
    def connect(cls, path: str = SOCKET, *, patience: float = 1.0) -> JournalSink:
        """Return a sink on the journal's socket.

        Raises:
            OSError: nobody listens there.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as journal:
            journal.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            journal.connect(path)
            sink = cls(journal.fileno(), patience=patience)
        sink.address = path
        return sink

    address: str = SOCKET

    @property
    def line_limit(self) -> int:
        return FILE_LINE_LIMIT

    def _chunks(self, lines: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
        for line in lines:
            yield line, 1

    def _write_some(self, view: memoryview) -> int:
        if self._socket is None:
            raise OSError(errno.EBADF, "closed")
        try:
            return super()._write_some(view)
        except OSError as error:
            if error.errno in (errno.EMSGSIZE, errno.ENOBUFS):
                return self._write_memory(self._socket, view)
            if error.errno not in (errno.ECONNREFUSED, errno.ENOTCONN, errno.ECONNRESET, errno.EPIPE):
                raise
        # The journal was restarted, and its socket with it.
        self._socket.connect(self.address)
        return super()._write_some(view)

    def _write_memory(self, journal: socket.socket, view: memoryview) -> int:
        fd = os.memfd_create("prefork-q-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.write(fd, view)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            passed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
            journal.sendmsg([], [passed], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        finally:
            os.close(fd)
        return len(view)


class JournalEvents(Events):
    """Events as records: the message is the text line, and each field can be asked for by its name."""

    def __init__(self, sink: JournalSink, *, level: Level, process: Mapping[str, object]) -> None:
        super().__init__(sink, format="text", level=level, process=process)
        self._journal = sink
        self._origin = b"SYSLOG_IDENTIFIER=prefork-q\n" + _fields(self.process)

    def with_process(self, **fields: object) -> JournalEvents:
        return JournalEvents(self._journal, level=self.level, process={**self.process, **fields})

    def attempt_line(
        self,
        id: str,
        type: str,
        queue: str,
        attempt: int,
        outcome: Outcome,
        duration: float,
        error_type: str | None = None,
        error_message: str | None = None,
    ) -> bytes:
        line = super().attempt_line(id, type, queue, attempt, outcome, duration, error_type, error_message)
        if not line:
            return b""
        fields = (
            f"PRIORITY={PRIORITY[OUTCOME_LEVEL[outcome]]}\nPREFORKQ_EVENT=finished\nPREFORKQ_TASK_ID={id}\n"
            f"PREFORKQ_ATTEMPT={attempt}\nPREFORKQ_OUTCOME={outcome}\n"
            f"PREFORKQ_DURATION_MS={duration * 1000:.3f}\n"
        )
        named = _field("PREFORKQ_TYPE", type) + _field("PREFORKQ_QUEUE", queue)
        if error_type is not None:
            named += _field("PREFORKQ_ERROR_TYPE", error_type)
        return b"".join((b"MESSAGE=", line[LEAD:], fields.encode(), named, self._origin))

    def attempt_lines(
        self, type: str, queue: str, attempt: int, outcome: Outcome, ended: Sequence[tuple[bytes, float]]
    ) -> list[bytes]:
        lines = (
            self.attempt_line(id.decode(), type, queue, attempt, outcome, duration) for id, duration in ended
        )
        return [line for line in lines if line]

    def _whole_line(self, event: str, level: str, fields: Mapping[str, object]) -> bytes:
        line = super()._whole_line(event, level, fields)
        lead = f"PRIORITY={PRIORITY[level]}\n".encode() + _field("PREFORKQ_EVENT", event)
        return b"".join((b"MESSAGE=", line[LEAD:], lead, _fields(fields), self._origin))


def _fields(fields: Mapping[str, object]) -> bytes:
    return b"".join(
        _field(f"PREFORKQ_{NAMES.get(name, name.upper())}", one)
        for name, value in fields.items()
        if value is not None
        # A record may have a field several times: one that tells of many tasks is found by each.
        for one in (value if name == "ids" and isinstance(value, (list, tuple)) else [value])
    )


def _field(name: str, value: object) -> bytes:
    text = as_text(value).encode()
    if b"\n" not in text:
        return b"%s=%s\n" % (name.encode(), text)
    return b"%s\n%s%s\n" % (name.encode(), struct.pack("<Q", len(text)), text)
