"""Everything that prefork-q raises on purpose.

    PreforkQError                code         raised when
    ├── Invalid                  invalid      the input is wrong; the text says what to mend
    │   ├── InvalidPayload       invalid      a payload does not fit its handler's signature
    │   └── IdempotencyConflict  invalid      the key was used for another request
    ├── TooLarge                 too_large    a payload or result is over its limit
    ├── ConfigurationError       config       an option, file or handlers module is wrong
    ├── NotFound                 not_found    no such task, queue or worker
    ├── Conflict                 conflict     the task is in a state that forbids it
    ├── Stale                    stale        the lease is another's, or nobody's
    ├── Unavailable              unavailable  Redis or the service cannot be reached, or is full
    └── TaskFailed               failed       a task that was waited for is dead or cancelled

    Control flow of handlers, raised by user code:
    RetryAfter (Exception)       run me again after so many seconds; uses an attempt
    Reject (Exception)           straight to dead
    TaskTimeout (BaseException)  the soft time limit; a BaseException so that a handler's
                                 `except Exception` does not swallow it
"""

from __future__ import annotations

import copyreg
from datetime import timedelta
from typing import Any, ClassVar


class Portable(Exception):
    """An error that another process can be sent, whatever its constructor takes."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own would call the constructor with the message.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class PreforkQError(Portable):
    """The root of all errors that prefork-q raises on purpose."""

    code: ClassVar[str] = "internal"


class Invalid(PreforkQError):
    """The input is wrong. `pointer` is a JSON pointer to the culprit, "" for the whole."""

    code = "invalid"

    def __init__(self, detail: str, *, pointer: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.pointer = pointer


class InvalidPayload(Invalid):
    """A payload that does not fit its handler; `errors` holds (JSON pointer, what to mend)."""

    def __init__(self, detail: str, errors: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(detail, pointer="/payload")
        self.errors = errors


class IdempotencyConflict(Invalid):
    """The idempotency key was used before, for another request.

    `index` is the place of the entry in its batch, 0 for a single submission.
    """

    def __init__(self, detail: str, *, index: int = 0) -> None:
        super().__init__(detail, pointer="/idempotency_key")
        self.index = index


class TooLarge(PreforkQError):
    """A payload or a result is over its limit."""

    code = "too_large"


class ConfigurationError(PreforkQError):
    """An option, a configuration file or the handlers module is wrong."""

    code = "config"


class NotFound(PreforkQError):
    """No such task, queue or worker."""

    code = "not_found"


class Conflict(PreforkQError):
    """The task is in a state that forbids what was asked."""

    code = "conflict"


class Stale(PreforkQError):
    """The lease is another's, or nobody's: the write was refused and changed nothing."""

    code = "stale"


class Unavailable(PreforkQError):
    """Redis or the service cannot be reached, is loading, or is full.

    `kind` is a bounded word for metrics: connection, timeout, loading, readonly, full,
    busy, denied or other. `retry_after` is a hint in seconds.
    """

    code = "unavailable"

    def __init__(self, detail: str, *, kind: str = "connection", retry_after: float = 1.0) -> None:
        super().__init__(detail)
        self.kind = kind
        self.retry_after = retry_after


class TaskFailed(PreforkQError):
    """A task that was waited for ended without a result.

    `status` is dead or cancelled, `error` what is known of the cause (see `TaskRecord.error`).
    """

    code = "failed"

    def __init__(self, id: str, status: str, error: dict[str, Any] | None = None) -> None:
        cause = f": {error.get('type')}: {error.get('message')}" if error else ""
        super().__init__(f"task {id} is {status}{cause}")
        self.id = id
        self.status = status
        self.error = error


class RetryAfter(Portable):
    """Raised by a handler: run this task again after `seconds`, a number or a timedelta. It uses an attempt.

    Raises:
        TypeError: `seconds` is something else, such as the text of a header: what is raised then is not what
            was meant, and says so.
    """

    def __init__(self, seconds: float | timedelta, reason: str = "") -> None:
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        elif not isinstance(seconds, (int, float)):
            raise TypeError(f"RetryAfter: give seconds as a number or a timedelta, not {seconds!r:.100}")
        super().__init__(reason or f"retry after {seconds:g} s")
        self.seconds = seconds


class Reject(Exception):
    """Raised by a handler: this task can never succeed. It goes straight to the dead."""


class TaskTimeout(BaseException):
    """Raised inside a handler whose soft time limit has passed.

    A BaseException, so that a handler's `except Exception` lets it through.
    """
