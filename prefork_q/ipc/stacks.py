"""What the threads of a worker are doing: a file in memory that the worker writes and the master reads.

The master makes the file before it asks for the worker, which gets its descriptor at birth. Two writers,
one format, that of faulthandler:

- the worker's main thread, when it is asked: safe, and with the names of the threads;
- faulthandler, on SIGNAL or when the process crashes: also while C code holds the interpreter's lock. It
  walks the frames of threads that may be running, so it is used only where the main thread is silent.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SIGNAL: Final = signal.SIGRTMIN + 5
"""Asks faulthandler. Above those that C libraries take for themselves; nobody else sends it."""

MAX_BYTES: Final = 1 << 20
"""Read of one file; faulthandler itself stops at 100 threads of 100 frames."""
STACK_LIMIT: Final = 8_000
"""Characters of one thread's stack; a longer one loses its middle."""

_HEADING: Final = re.compile(r"^(?:Current t|T)hread 0x([0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):")
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_DUMP: Final = re.compile(r"^Dump (\d+)$", re.MULTILINE)
_OWN_FRAME: Final = re.compile(r'^  File "[^"]*/prefork_q/worker/processor\.py"')


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """`frames` are lines as in a traceback, the most recent call last. `is_current`: it held the
    interpreter, or crashed."""

    ident: int
    name: str
    frames: tuple[str, ...]
    is_current: bool = False

    @property
    def text(self) -> str:
        """The frames as one text, bounded."""
        return _shorten("\n".join(self.frames), STACK_LIMIT)

    @property
    def user_text(self) -> str:
        """The same without what lies below the handler, if it is in one."""
        own = [at for at, frame in enumerate(self.frames) if _OWN_FRAME.match(frame)]
        frames = self.frames[own[-1] + 1 :] if own else self.frames
        return _shorten("\n".join(frames or self.frames), STACK_LIMIT)


class StackFile:
    """The master's end of one worker's file."""

    __slots__ = ("_fd",)

    def __init__(self) -> None:
        """Make the file.

        Raises:
            OSError: there are no descriptors left.
        """
        self._fd = os.memfd_create("stacks", os.MFD_CLOEXEC)
        append_only(self._fd)

    def fileno(self) -> int:
        return self._fd

    def clear(self) -> None:
        os.ftruncate(self._fd, 0)

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self) -> str:
        return os.pread(self._fd, MAX_BYTES, 0).decode(errors="replace")

    def close(self) -> None:
        """Again is allowed."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def append_only(fd: int) -> None:
    """Let each write go to the end: the file is cleared by another process, and the offset is shared."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)


def heading(ident: int, name: str) -> str:
    """Return the line that begins one thread's stack."""
    return f"Thread 0x{ident:016x} [{name}] (most recent call first):"


def answer_heading(serial: int) -> str:
    """Return the line that begins the answer of a main thread to the question of that number."""
    return f"Dump {serial}"


def stacks_in(text: str, names: Mapping[int, str], *, serial: int | None = None) -> list[ThreadStack]:
    """Return the stacks in a file's text: the main thread's own answer to `serial`, else faulthandler's.

    `names` are those of threads that faulthandler does not name, by identity.
    """
    found: list[ThreadStack] = []
    ident, name, is_current, frames = 0, "", False, list[str]()

    def close() -> None:
        if ident:
            found.append(ThreadStack(ident, name, tuple(reversed(frames)), is_current))

    for line in _part(text, serial).splitlines():
        if match := _HEADING.match(line):
            close()
            ident = int(match[1], 16)
            name = match[2] or names.get(ident) or f"0x{ident:x}"
            is_current, frames = line.startswith("Current"), []
        elif match := _FRAME.match(line):
            frames.append(f'  File "{match[1]}", line {match[2]}, in {match[3]}')
    close()
    return found


def _part(text: str, serial: int | None) -> str:
    pieces = _DUMP.split(text)
    answers = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    return answers.get(str(serial), pieces[0])


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[len(text) - half :]}"
