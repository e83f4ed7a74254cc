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
SIGNALS: Final[tuple[tuple[str, str], ...]] = (
    ("TERM, INT", "drain, then exit 0; a second one: return what still runs, and exit now"),
    ("QUIT", "return what runs, and exit now"),
    ("HUP", "reload code and configuration with no gap; during a reload: once more after it"),
    ("TSTP", "quiet: the workers claim nothing more, and finish what they run"),
    ("CONT", "the end of quiet; not when it ends a stop (SIGSTOP) that the node has noticed: then it goes on "
             "as it was"),
    ("TTIN", "one worker more"),
    ("TTOU", "one worker less; there always is one"),
    ("USR1", "open the log file again; the other processes notice by themselves that it was moved"),
    ("USR2", "the stacks of all workers to the log"),
    ("ABRT", "the master's own stack to stderr, those of all workers to the log, then die; for a watchdog"),
    ("WINCH", "nothing"),
)  # fmt: skip
"""What each does, for people."""
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
