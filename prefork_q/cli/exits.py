"""Exit codes: one place for all, in the tradition of sysexits.h."""

from __future__ import annotations

from prefork_q.errors import ConfigurationError, Invalid, TooLarge, Unavailable

FAILED = 1
DEGRADED = 1
NOT_RUNNING = 3
TIMED_OUT = 75
INTERRUPTED = 130

EXIT_CODES: dict[str, int] = {
    Invalid.code: 2,
    TooLarge.code: 2,
    Unavailable.code: 69,
    ConfigurationError.code: 78,
}
"""Exit codes of the codes of errors.py; what is not here is a failure: 1."""
