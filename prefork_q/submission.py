"""What a submission may say, checked once for the client and the API, before anything is stored."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import orjson

from prefork_q import strict_json
from prefork_q.errors import Invalid, TooLarge
from prefork_q.ids import new_id
from prefork_q.keys import NAME, NAME_RULE
from prefork_q.retry import MAX_DELAY
from prefork_q.task import DEFAULT_MAX_ATTEMPTS, DEFAULT_QUEUE, MAX_ATTEMPTS_LIMIT, Submission, fingerprint

IDEMPOTENCY_KEY = re.compile(r"[!-~]{1,255}")
"""1 to 255 visible ASCII characters."""
MIN_TIMEOUT: Final = 0.001
DEFAULTS: Final = {"queue": DEFAULT_QUEUE, "max_attempts": DEFAULT_MAX_ATTEMPTS}


# Not frozen: that would make it twice as dear to create, and in a bulk that counts.
@dataclass(slots=True)
class NewTask:
    """A task to submit. The payload's values may be of any type that `strict_json.encode` writes.

    `delay` and `timeout` are seconds, `run_at` seconds since the epoch or a datetime with a zone;
    at most one of `delay` and `run_at` is given. `filled_in` names the options that were not asked for,
    but are those of the handler: an idempotency key does not stand for them.
    """

    type: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    queue: str = DEFAULT_QUEUE
    delay: float | timedelta | None = None
    run_at: float | datetime | None = None
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    timeout: float | timedelta | None = None
    idempotency_key: str | None = None
    filled_in: Collection[str] = ()


def prepare_all(news: Iterable[NewTask], *, payload_limit: int) -> list[Submission]:
    """Return the submissions of new tasks, in order.

    Raises:
        Invalid: one is no NewTask.
        Invalid, TooLarge: as `prepare` does, for the first wrong one.
    """
    prepared: list[Submission] = []
    left = iter(news)
    # A few at a time: what a generator makes is let go before Python's collector walks through it.
    while some := list(islice(left, 250)):
        for kind in set(map(type, some)):
            if not issubclass(kind, NewTask):
                raise Invalid(f"each task is a NewTask(type, payload, ...), not a {kind.__name__}")
        ids = new_id.many(len(some))
        prepared += [prepare(new, id, payload_limit=payload_limit) for new, id in zip(some, ids, strict=True)]
    return prepared


def prepare(new: NewTask, id: str | None = None, *, payload_limit: int) -> Submission:
    """Return the submission of a new task, with this id or one of its own.

    Raises:
        Invalid: an option or the payload is wrong; `pointer` says which, in the API's names.
        TooLarge: the payload has more than `payload_limit` bytes of JSON.
    """
    type_, queue, max_attempts, key = new.type, new.queue, new.max_attempts, new.idempotency_key
    try:
        _check_common(type_, queue, max_attempts)
    except TypeError:
        # What cannot be hashed is neither a name nor a number.
        _check_common.__wrapped__(type_, queue, max_attempts)
    delay = run_at = timeout = digest = None
    if key is not None:
        check_idempotency_key(key)
    if new.delay is not None or new.run_at is not None:
        delay, run_at = seconds_of(new.delay), epoch_of(new.run_at)
        check_due(delay, run_at)
    if new.timeout is not None:
        timeout = seconds_of(new.timeout)
        check_timeout(timeout)
    body = encode_payload(new.payload, payload_limit=payload_limit)
    if key is not None:
        digest = _fingerprint(new, orjson.loads(body), delay, run_at, timeout)
    return Submission(id or new_id(), type_, body, queue, max_attempts, delay, run_at, timeout, key, digest)


def _fingerprint(
    new: NewTask, payload: object, delay: float | None, run_at: float | None, timeout: float | None
) -> str:
    """Return the digest of what was asked for.

    What equals a default counts as not asked for, whoever submits: the API could tell the two apart and the
    client cannot, and a request may be sent again by the other of them.
    """
    given: dict[str, Any] = {"queue": new.queue, "max_attempts": new.max_attempts, "timeout": timeout}
    given |= dict.fromkeys(name for name, default in DEFAULTS.items() if given[name] == default)
    given |= dict.fromkeys(new.filled_in)
    return fingerprint(
        new.type,
        payload,
        queue=given["queue"],
        delay=float(delay) if delay else None,
        run_at=None if run_at is None else float(run_at),
        max_attempts=given["max_attempts"],
        timeout=None if given["timeout"] is None else float(given["timeout"]),
    )


# Remembered, when nothing is wrong: what the tasks of a program have in common is said again and again. By
# type too, since True is no number of attempts.
@lru_cache(maxsize=256, typed=True)
def _check_common(type_: object, queue: object, max_attempts: object) -> None:
    check_name(type_, "type")
    check_name(queue, "queue")
    check_max_attempts(max_attempts)


def encode_payload(payload: object, *, payload_limit: int) -> bytes:
    """Return a payload as JSON text.

    Raises:
        Invalid: it is no object, or something in it has no strict JSON form.
        TooLarge: it has more than `payload_limit` bytes.
    """
    if type(payload) is not dict:
        if not isinstance(payload, Mapping):
            raise Invalid(
                f"payload: must be an object (a dict), not a {type(payload).__name__}", pointer="/payload"
            )
        payload = dict(payload)
    try:
        body = strict_json.encode(payload)
    except Invalid as error:
        raise Invalid(f"payload: {error.detail}", pointer=f"/payload{error.pointer}") from None
    if len(body) > payload_limit:
        check_size(len(body), payload_limit)
    return body


def check_size(size: int, payload_limit: int) -> None:
    """Raise TooLarge if a payload of `size` bytes is over the limit."""
    if size > payload_limit:
        raise TooLarge(
            f"the payload has {size:,} bytes of JSON, {payload_limit:,} are allowed (payload_limit): "
            "store the data elsewhere and send where it is"
        )


def check_name(name: object, option: str) -> None:
    """Raise Invalid unless `name` fits a type or queue."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Invalid(f"{option}: {NAME_RULE}", pointer=f"/{option}")


def check_max_attempts(value: object) -> None:
    """Raise Invalid unless `value` is a number of attempts."""
    if type(value) is not int or not 1 <= value <= MAX_ATTEMPTS_LIMIT:
        raise Invalid(
            f"max_attempts: a whole number from 1 to {MAX_ATTEMPTS_LIMIT:,}", pointer="/max_attempts"
        )


def check_due(delay: float | None, run_at: float | None) -> None:
    """Raise Invalid unless a task may start so late. A time in the past means at once."""
    if delay is not None and run_at is not None:
        raise Invalid("delay and run_at exclude each other: give one of them", pointer="/run_at")
    if delay is not None and not (_is_finite(delay) and 0 <= delay <= MAX_DELAY):
        raise Invalid(f"delay: seconds from 0 to {MAX_DELAY:,.0f} (a year)", pointer="/delay_s")
    if run_at is not None and not (_is_finite(run_at) and 0 <= run_at <= time.time() + MAX_DELAY):
        raise Invalid("run_at: a time within a year from now", pointer="/run_at")


def check_timeout(timeout: float | None) -> None:
    """Raise Invalid unless `timeout` is a time limit in seconds, or None for none."""
    if timeout is not None and not (_is_finite(timeout) and MIN_TIMEOUT <= timeout <= MAX_DELAY):
        raise Invalid(f"timeout: seconds from {MIN_TIMEOUT:g} to {MAX_DELAY:,.0f}", pointer="/timeout_s")


def check_idempotency_key(key: object) -> None:
    """Raise Invalid unless `key` is an idempotency key, or None for none."""
    if key is not None and not (isinstance(key, str) and IDEMPOTENCY_KEY.fullmatch(key)):
        raise Invalid(
            "idempotency_key: 1 to 255 visible ASCII characters, no space", pointer="/idempotency_key"
        )


def seconds_of(value: float | timedelta | None) -> float | None:
    """Return a duration in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def epoch_of(value: float | datetime | None) -> float | None:
    """Return a time in seconds since the epoch.

    Raises:
        Invalid: a datetime has no zone, so it names no moment.
    """
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        raise Invalid("run_at: give the datetime a time zone, as datetime.now(UTC) has", pointer="/run_at")
    return value.timestamp()


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
