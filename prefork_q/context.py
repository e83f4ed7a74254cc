"""What a running handler may know and say of its task."""

from __future__ import annotations

import math
from typing import Protocol

NOTE_LIMIT = 200
"""Characters of a progress note that are kept."""


class Runtime(Protocol):
    """What the worker does for a context. Called from the thread that runs the handler."""

    def report_progress(self, fraction: float, note: str) -> None: ...

    def is_cancelled(self) -> bool: ...

    def is_lease_valid(self) -> bool: ...


class Detached:
    """The runtime of a context outside a worker, as in a plain call of a handler or in a test."""

    def report_progress(self, fraction: float, note: str) -> None:
        """Tell nobody."""

    def is_cancelled(self) -> bool:
        return False

    def is_lease_valid(self) -> bool:
        return True


DETACHED = Detached()


class TaskContext:
    """The attempt that is running, for its handler.

    Attributes:
        id: the task's id.
        type: the name of its handler.
        attempt: which attempt this is, from 1.
        max_attempts: how many there may be.
        deadline: when the attempt's time limit is over, in seconds since the epoch; None without one.
        token: the lease's fencing token, an integer that only grows: a handler's own conditional
            writes can refuse a lower one than they have seen.

    Without arguments it is a context of no task, fit as the default of a handler's parameter:
    then a plain call of the handler needs none, and type checkers ask for none in `submit`.
    """

    __slots__ = ("_runtime", "attempt", "deadline", "id", "max_attempts", "token", "type")

    def __init__(
        self,
        id: str = "",
        type: str = "",
        attempt: int = 1,
        max_attempts: int = 1,
        deadline: float | None = None,
        token: int = 0,
        runtime: Runtime = DETACHED,
    ) -> None:
        self.id = id
        self.type = type
        self.attempt = attempt
        self.max_attempts = max_attempts
        self.deadline = deadline
        self.token = token
        self._runtime = runtime

    def progress(self, fraction: float, note: str = "") -> None:
        """Tell how far the task is: `fraction` from 0 to 1, and a note of up to 200 characters.

        It returns at once; the newest report is written soon, those before it may be skipped.

        Raises:
            ValueError: `fraction` is not a number. One outside of 0 to 1 counts as the nearer end.
        """
        if not isinstance(fraction, (int, float)) or math.isnan(fraction):
            raise ValueError(f"progress: a fraction from 0 to 1, not {fraction!r}")
        # A name of a file may have what cannot be written as UTF-8.
        text = str(note)[:NOTE_LIMIT].encode("utf-8", "backslashreplace").decode()[:NOTE_LIMIT]
        self._runtime.report_progress(min(max(float(fraction), 0.0), 1.0), text)

    @property
    def cancelled(self) -> bool:
        """Whether a cancellation was asked for: what the handler raises then is not tried again.

        What it returns all the same is a result, and the task has succeeded.
        """
        return self._runtime.is_cancelled()

    def lease_valid(self) -> bool:
        """Whether the lease still holds, so that nobody else may be running this task now."""
        return self._runtime.is_lease_valid()

    def __repr__(self) -> str:
        return f"TaskContext(id={self.id!r}, type={self.type!r}, attempt={self.attempt})"
