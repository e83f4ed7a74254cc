"""What ends the fetch loop's sleep, from any thread and from signal handlers: a pipe to itself."""

from __future__ import annotations

import os


class Bell:
    """Poll `fileno`; whoever has something for the loop rings."""

    def __init__(self) -> None:
        self.fileno, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def ring(self) -> None:
        try:
            os.write(self.writer, b"\0")
        except BlockingIOError:
            # The pipe is full of rings already.
            return

    def quieten(self) -> None:
        """Take in what was rung so far."""
        try:
            os.read(self.fileno, 4_096)
        except BlockingIOError:
            return

    def close(self) -> None:
        os.close(self.writer)
        os.close(self.fileno)
