"""Signals to the master. Handlers append and return; the loop does the rest."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections import deque
from types import FrameType
from typing import Final

HANDLED: Final = (
    signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD, signal.SIGHUP, signal.SIGTSTP,
    signal.SIGCONT, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH,
    signal.SIGABRT,
)  # fmt: skip
_STDERR: Final = 2


class Signals:
    """The queue of what came in. The wake-up descriptor ends the wait of the loop."""

    def __init__(self) -> None:
        self._arrived: deque[int] = deque()
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._previous_wakeup = -1
        self._previous: dict[int, object] = {}

    def install(self) -> None:
        """Take over the signals of this process."""
        self._previous_wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in HANDLED:
            self._previous[number] = signal.signal(number, self._append)
        # What this process itself is doing goes to stderr first, from wherever it hangs; then faulthandler
        # raises the signal anew, for the handler that was there before it.
        faulthandler.enable(_STDERR, all_threads=True)

    def restore(self) -> None:
        """Give them back, and close."""
        faulthandler.disable()
        for number, handler in self._previous.items():
            # None: it was not set from Python.
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)  # type: ignore[arg-type]
        self._previous.clear()
        signal.set_wakeup_fd(self._previous_wakeup)
        os.close(self._reader)
        os.close(self._writer)

    def fileno(self) -> int:
        """Readable when a signal came."""
        return self._reader

    def take(self) -> list[int]:
        """Return what came since the last call, in order."""
        try:
            while len(os.read(self._reader, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass
        taken = []
        while self._arrived:
            taken.append(self._arrived.popleft())
        return taken

    def _append(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append(number)
