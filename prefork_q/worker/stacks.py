"""A worker's answer to the question what its threads are doing. Main thread, but for crashes.

Asked over the channel, the main thread answers by itself. When it cannot, because C code holds the
interpreter's lock, the master sends a signal, and faulthandler answers from whatever thread gets it. A
crash (SIGSEGV and the like) leaves the stacks there too.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from types import FrameType
from typing import Final

from prefork_q.ipc.slot import WorkerSlot
from prefork_q.ipc.stacks import MAX_BYTES, SIGNAL, answer_heading, heading

MAX_FRAMES: Final = 100
"""Of one thread, as faulthandler has it."""


class Stacks:
    """Writes to the file whose descriptor the worker was born with."""

    def __init__(self, fd: int, slot: WorkerSlot) -> None:
        self._fd = fd
        self._slot = slot

    def install(self) -> None:
        """Be ready to be asked, and to crash."""
        if self._fd < 0:
            return
        # What the handlers' import may have enabled was inherited as enabled, and stays where it writes.
        faulthandler.disable()
        faulthandler.enable(self._fd, all_threads=True)
        faulthandler.register(SIGNAL, self._fd, all_threads=True, chain=False)
        self._slot.main_thread = threading.get_ident()

    def forget(self) -> None:
        """In a child that a handler forked: the file is not its own."""
        if self._fd >= 0:
            faulthandler.unregister(SIGNAL)
            faulthandler.disable()
            os.close(self._fd)
            self._fd = -1

    def write(self, serial: int) -> None:
        """Answer the question of that number."""
        if self._fd < 0:
            return
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        lines = [answer_heading(serial)]
        for ident, frame in sys._current_frames().items():
            lines += [heading(ident, names.get(ident) or f"0x{ident:x}"), *_lines(frame)]
        text = "\n".join([*lines, ""])
        os.write(self._fd, text.encode(errors="backslashreplace")[:MAX_BYTES])


def _lines(frame: FrameType) -> list[str]:
    lines: list[str] = []
    at: FrameType | None = frame
    while at is not None and len(lines) < MAX_FRAMES:
        code = at.f_code
        lines.append(f'  File "{code.co_filename}", line {at.f_lineno or "???"} in {code.co_name}')
        at = at.f_back
    return lines
