"""Where log lines go: a descriptor that is written whole lines at a time and never for long.

- A line is one write(2). On a pipe or socket no write is longer than PIPE_BUF, so lines of
  several processes do not mix; a file or terminal takes a whole batch at once.
- A reader that stalls must not stall the queue. Pipes and terminals are opened anew through
  /proc, which gives an open file description of our own: O_NONBLOCK on the inherited one
  would also change our parent's. What cannot be written within the patience is counted.
- A file that was rotated away is noticed within a second of writing, in every process by
  itself; `reopen` does it at once.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import time
from collections.abc import Iterator, Sequence

PIPE_BUF = 4096
"""Bytes. A write up to this size is atomic on a pipe (pipe(7))."""
FILE_LINE_LIMIT = 65_536
"""Bytes. The longest line to a file or a terminal."""
FILE_WRITE_LIMIT = 1_048_576
ROTATION_CHECK = 1.0
"""Seconds between two looks at whether the file is still the one that its path names."""


class Sink:
    """A place for lines. Any thread of the process that made it, or of its children, may write.

    `patience` is how long one write may wait for a slow reader, in seconds: 0 in the master,
    which must never wait. After one wait in vain the sink stops waiting until a write succeeds.
    `dropped` counts the lines that were not written, for whatever reason.
    """

    def __init__(self, fd: int, *, path: str | None = None, patience: float = 1.0) -> None:
        self.path = path
        self.patience = patience
        self.dropped = 0
        self._inherited = fd
        self._fd, self._socket, self.is_atomic = _own_description(fd)
        self._is_stalled = False
        self._is_torn = False
        self._checked_at = time.monotonic()

    @classmethod
    def stderr(cls, *, patience: float = 1.0) -> Sink:
        """Return a sink on descriptor 2, whatever it is connected to."""
        return cls(2, patience=patience)

    @classmethod
    def file(cls, path: str | os.PathLike[str], *, patience: float = 1.0) -> Sink:
        """Return a sink that appends to the file at `path`, made if missing.

        Raises:
            OSError: it cannot be opened for appending.
        """
        absolute = os.path.abspath(path)
        return cls(_open_to_append(absolute), path=absolute, patience=patience)

    @property
    def line_limit(self) -> int:
        """The bytes that one line may have, its newline included."""
        return PIPE_BUF if self.is_atomic else FILE_LINE_LIMIT

    def fileno(self) -> int:
        """The descriptor that is written to; a child that uses this sink must keep it open."""
        return self._fd

    def isatty(self) -> bool:
        try:
            return os.isatty(self._fd)
        except OSError:
            return False

    def write(self, lines: Sequence[bytes]) -> None:
        """Write `lines`, each with its newline, in as few writes as keep every line whole."""
        if self.path is not None:
            self._follow_rotation()
        if self._is_torn:
            lines = [b"\n", *lines]
        for chunk, count in self._chunks(lines):
            if not self._write(chunk):
                self.dropped += count

    def reopen(self) -> None:
        """Open the file at the path again, as after a rotation. On failure the old one stays.

        Raises:
            OSError: it cannot be opened for appending.
        """
        if self.path is None:
            return
        fd = _open_to_append(self.path)
        # Over the old number, in one step: another thread may be writing to it.
        os.dup2(fd, self._fd, inheritable=False)
        os.close(fd)

    def close(self) -> None:
        """Close what this sink opened; an inherited descriptor stays open."""
        if self._socket is not None:
            self._socket.close()
        elif self._fd >= 0 and (self._fd != self._inherited or self.path is not None):
            os.close(self._fd)
        self._fd, self._socket, self._inherited = -1, None, -1

    def _chunks(self, lines: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
        limit = PIPE_BUF if self.is_atomic else FILE_WRITE_LIMIT
        start = size = 0
        for index, line in enumerate(lines):
            if size and size + len(line) > limit:
                yield b"".join(lines[start:index]), index - start
                start, size = index, 0
            size += len(line)
        if size:
            yield b"".join(lines[start:]), len(lines) - start

    def _write(self, data: bytes) -> bool:
        deadline = time.monotonic() + (0.0 if self._is_stalled else self.patience)
        view = memoryview(data)
        while view:
            try:
                written = self._write_some(view)
            except BlockingIOError:
                if not self._can_write_before(deadline):
                    self._is_stalled = True
                    self._is_torn = len(view) < len(data)
                    return False
            except OSError:
                # Reader gone, disk full, no such descriptor: a log that fails must not take
                # the work down with it. The caller counts the lines.
                self._is_torn = len(view) < len(data)
                return False
            else:
                view = view[written:]
        self._is_stalled = self._is_torn = False
        return True

    def _write_some(self, view: memoryview) -> int:
        if self._socket is not None:
            return self._socket.send(view, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        return os.write(self._fd, view)

    def _can_write_before(self, deadline: float) -> bool:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        return bool(poller.poll(left * 1000))

    def _follow_rotation(self) -> None:
        now = time.monotonic()
        if self.path is None or now - self._checked_at < ROTATION_CHECK:
            return
        self._checked_at = now
        try:
            named, opened = os.stat(self.path), os.fstat(self._fd)
            if (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino):
                return
        except FileNotFoundError:
            pass
        except OSError:
            return
        try:
            self.reopen()
        except OSError:
            # Its folder is gone or closed to us; the old file still takes the lines.
            return


def _open_to_append(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY, 0o640)


def _own_description(fd: int) -> tuple[int, socket.socket | None, bool]:
    """Return the descriptor to write to, its socket if it is one, and whether writes are kept short."""
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISSOCK(mode):
            own = socket.socket(fileno=os.dup(fd))
            return own.fileno(), own, True
    except OSError:
        return -1, None, True
    if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        return fd, None, False
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        return os.open(f"/proc/self/fd/{fd}", flags), None, stat.S_ISFIFO(mode)
    except OSError:
        # No /proc, or it belongs to another user: a blocking descriptor is all there is.
        return fd, None, stat.S_ISFIFO(mode)
