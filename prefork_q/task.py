"""The values that travel: a task as it is submitted, leased, and shown.

As JSON a task is `{id, type, queue, status, payload, attempts, crashes, max_attempts,
created_at, ...}`; DESIGN.md has the whole of it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from prefork_q.states import Status

DEFAULT_QUEUE: Final = "default"
DEFAULT_MAX_ATTEMPTS: Final = 3
MAX_ATTEMPTS_LIMIT: Final = 1_000


class Submission(NamedTuple):
    """A task to be stored. `id` is made by the submitter, so that a repeated call stores it once.

    `body` is the payload as JSON text. At most one of `delay` (seconds from now, on Redis's
    clock) and `run_at` (seconds since the epoch) is given. `timeout` is in seconds.
    `fingerprint` tells two requests under one idempotency key apart; see `fingerprint()`.
    """

    id: str
    type: str
    body: bytes
    queue: str = DEFAULT_QUEUE
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    delay: float | None = None
    run_at: float | None = None
    timeout: float | None = None
    idempotency_key: str | None = None
    fingerprint: str | None = None


class Submitted(NamedTuple):
    """The answer to a submission. `id` is the first one's if an idempotency key was used before."""

    id: str
    status: Status
    is_replayed: bool = False


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task as Redis holds it now. Times are seconds since the epoch, on Redis's clock.

    `error` is `{type, message, traceback, cause?}`; `progress` is `{fraction, note}`.
    `result` means something only if `status` is succeeded.
    """

    id: str
    type: str
    queue: str
    status: Status
    payload: Any
    attempts: int
    crashes: int
    losses: int
    max_attempts: int
    created_at: float
    started_at: float | None = None
    finished_at: float | None = None
    run_at: float | None = None
    timeout: float | None = None
    result: Any = None
    error: dict[str, Any] | None = None
    progress: dict[str, Any] | None = None
    is_cancel_requested: bool = field(default=False)


def fingerprint(
    type: str,
    payload: Any,
    *,
    queue: str | None,
    delay: float | None,
    run_at: float | None,
    max_attempts: int | None,
    timeout: float | None,
) -> str:
    """Return a digest of what was asked for; the order of members and white space do not count.

    None stands for an option that was not given: what a handler or a default then says may be another at
    the next try, and the request is the same.
    """
    canonical = orjson.dumps(
        [type, payload, queue, delay, run_at, max_attempts, timeout], option=orjson.OPT_SORT_KEYS
    )
    return hashlib.blake2b(canonical, digest_size=16).hexdigest()
