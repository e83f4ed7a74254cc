"""Submits tasks and follows them, from any thread of any process.

    client = Client("redis://localhost")
    task = client.submit("thumbnail", {"path": "a.png"})
    result = task.wait(timeout=30)

Whatever is sent to Redis is safe to send again, so a lost answer costs a repetition and never a
second task.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import accumulate
from operator import attrgetter
from types import TracebackType
from typing import Any, Final, TypeVar

from prefork_q.broker import Broker
from prefork_q.config import Config, effective_redis_url, load
from prefork_q.connection import connect
from prefork_q.errors import (
    ConfigurationError,
    Conflict,
    IdempotencyConflict,
    NotFound,
    TaskFailed,
    Unavailable,
)
from prefork_q.events import mask_url
from prefork_q.ids import is_id
from prefork_q.inspector import Inspector
from prefork_q.keys import Keys
from prefork_q.leases import Limits
from prefork_q.option_types import checked_redis_url
from prefork_q.options import redis_url_given
from prefork_q.states import Status
from prefork_q.submission import NewTask, prepare, prepare_all
from prefork_q.task import DEFAULT_MAX_ATTEMPTS, DEFAULT_QUEUE, Submission, Submitted, TaskRecord
from prefork_q.waiting import TRANSIENT, pauses, wait_until_ended

T = TypeVar("T")

REPEATS: Final = 3
"""How often a call is repeated after Redis could not be reached, before its error is raised."""
REPEAT_TIME: Final = 5.0
"""Seconds after which nothing is repeated any more."""
CALL_TASKS, CALL_BYTES = 500, 1 << 20
"""Tasks and bytes of payloads that one call submits: what one script may do to Redis's time."""
BODY = attrgetter("body")


class _Connected:
    """What talks to Redis in one process."""

    def __init__(self, url: str, keys: Keys, retention: float) -> None:
        self.pid = os.getpid()
        self.redis = connect(url)
        self.broker = Broker(self.redis, keys, Limits(retention=retention))
        self.inspector = Inspector(self.redis, keys)


class Client:
    """A client of one namespace. Safe to share between threads, and to carry over a fork.

    What the arguments leave out comes from the environment and the configuration file, as for
    the command line: PREFORK_Q_REDIS_URL, REDIS_URL, PREFORK_Q_NAMESPACE, ..., and with no URL
    anywhere the embedded server of the state folder. It connects with the first call. A configured
    password is sent only to the server that the configuration names.

    Every method that talks to Redis raises `Unavailable` when it cannot be reached or refuses.

    Raises:
        ConfigurationError: the URL, the namespace or the configuration is wrong.
    """

    def __init__(
        self, redis_url: str | None = None, namespace: str | None = None, *, config: Config | None = None
    ) -> None:
        # Whose password it is that the configuration has, its own URL says.
        owner = config
        if config is None:
            config = load({"redis_url": redis_url, "namespace": namespace}, os.environ)
            if redis_url is not None and config.redis_password_file is not None:
                with suppress(ConfigurationError):
                    owner = load({"namespace": namespace}, os.environ)
        if redis_url is None:
            self._url = effective_redis_url(config)
        else:
            checked_redis_url(redis_url)
            self._url = redis_url if owner is None else redis_url_given(redis_url, owner)
        self._keys = Keys(config.namespace if namespace is None else namespace)
        self._payload_limit = config.payload_limit
        self._retention = config.retention
        # By process: a socket that two processes share would mix their answers.
        self._by_pid: dict[int, _Connected] = {}

    def submit(
        self,
        type: str,
        payload: Mapping[str, Any] | None = None,
        *,
        queue: str = DEFAULT_QUEUE,
        delay: float | timedelta | None = None,
        run_at: float | datetime | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        timeout: float | timedelta | None = None,
        idempotency_key: str | None = None,
    ) -> Task:
        """Submit a task by the name of its type. The handler is not known here: its queue and attempts are
        not taken, and a payload that does not fit it shows when the task runs. HTTP and a handler's own
        `submit` know it.

        Args:
            type: the name of the handler.
            payload: its keyword arguments.
            queue: where it waits for a worker.
            delay: seconds before it may start.
            run_at: when it may start, in seconds since the epoch or as a datetime with a zone.
            max_attempts: how often it may run at all, 1 to 1,000.
            timeout: the soft limit of one attempt in seconds.
            idempotency_key: 1 to 255 visible characters; the same key and request again give the
                first task back, for as long as that is kept.

        Raises:
            Invalid: an option or the payload is wrong.
            TooLarge: the payload is over the limit.
            IdempotencyConflict: the key was used for another request.
        """
        new = NewTask(
            type,
            {} if payload is None else payload,
            queue,
            delay,
            run_at,
            max_attempts,
            timeout,
            idempotency_key,
        )
        submission = prepare(new, payload_limit=self._payload_limit)
        return Task(self, self._repeated(lambda: self._here().broker.submit([submission]))[0])

    def submit_many(self, tasks: Iterable[NewTask]) -> list[Task]:
        """Submit tasks, each a `NewTask(type, payload, ...)`, in order. All are checked before one is sent.

        They are sent in calls of up to 500, each of which stores all of its tasks or none. When one
        fails, the earlier ones are stored: with idempotency keys, submit all again. Without such keys
        the next call is made while Redis is at the one before, and may be stored although that fails.

        Raises:
            Invalid, TooLarge: as for `submit`, nothing was stored.
            IdempotencyConflict: as for `submit`; its `index` is the place in `tasks`.
        """
        prepared = prepare_all(tasks, payload_limit=self._payload_limit)
        chunks = deque(_chunks(prepared))
        # With idempotency keys each waits for the one before: after a conflict nothing more is sent.
        is_free = not any(one.idempotency_key for one in prepared)
        broker = self._here().broker
        done: list[Task] = []
        while chunks:
            if is_free and len(chunks) > 1:
                # What is not answered goes again, alone and with the patience that that has.
                with suppress(Unavailable):
                    for answers in broker.submit_in_turn(tuple(chunks)):
                        chunks.popleft()
                        done += [Task(self, answer) for answer in answers]
                    break
            try:
                answers = self._repeated(lambda: broker.submit(chunks[0]))
            except IdempotencyConflict as error:
                raise IdempotencyConflict(error.detail, index=len(done) + error.index) from None
            chunks.popleft()
            done += [Task(self, answer) for answer in answers]
        return done

    def get(self, id: str) -> TaskRecord:
        """Return a task as it is now.

        Raises:
            NotFound: there is no such task (any more).
        """
        record = self._repeated(lambda: self._here().inspector.get(id)) if is_id(id) else None
        if record is None:
            raise NotFound(f"there is no task {id}")
        return record

    def wait(self, id: str, timeout: float | None = None) -> Any:
        """Return the result of a task, as soon as it has one.

        Raises:
            TaskFailed: it is dead or cancelled; the error says why.
            TimeoutError: it has not ended within `timeout` seconds. None waits for as long as it takes.
            NotFound: there is no such task (any more).
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if not is_id(id):
            raise NotFound(f"there is no task {id}")
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            status = wait_until_ended(self._url, self._keys, self._here().broker, id, timeout=left)
            if status is None:
                raise TimeoutError(f"task {id} has not ended within {timeout:g} s")
            record = self.get(id)
            if record.status is Status.SUCCEEDED:
                return record.result
            if record.status.has_ended:
                raise TaskFailed(id, record.status, record.error)
            # An operator has given it a new life between the two looks.

    def cancel(self, id: str) -> str:
        """Cancel a task. Returns `cancelled`, or `requested` if it runs: its handler is told.

        Raises:
            Conflict: it has ended.
            NotFound: there is no such task (any more).
        """
        word = self._repeated(lambda: self._here().broker.cancel(id)) if is_id(id) else "missing"
        if word == "missing":
            raise NotFound(f"there is no task {id}")
        if word == "ended":
            raise Conflict(f"task {id} has ended")
        return word

    def retry(self, id: str) -> None:
        """Give a dead task a new life; attempts and crashes start anew.

        Raises:
            Conflict: it is not dead.
            NotFound: there is no such task (any more).
        """
        # One name for all repetitions: a second one must not find its own work and call it a conflict.
        nonce = uuid.uuid4().hex
        words = self._repeated(lambda: self._here().broker.retry([id], nonce=nonce)) if is_id(id) else []
        if words in ([], ["missing"]):
            raise NotFound(f"there is no task {id}")
        if words == ["not_dead"]:
            raise Conflict(f"task {id} is not dead")

    def close(self) -> None:
        """Close this process's connections. The client can be used again and then connects anew."""
        connected = self._by_pid.pop(os.getpid(), None)
        if connected is not None:
            connected.redis.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({mask_url(self._url)!r}, {self._keys.namespace!r})"

    def _here(self) -> _Connected:
        """Return what talks to Redis in this process."""
        pid = os.getpid()
        connected = self._by_pid.get(pid)
        if connected is None:
            # What came over a fork is closed, never shut down: the parent goes on with it.
            for other in [known for known in self._by_pid if known != pid]:
                self._by_pid.pop(other, None)
            # Without a lock, which a fork could leave locked: of several threads the first one's stays.
            connected = self._by_pid.setdefault(pid, _Connected(self._url, self._keys, self._retention))
        return connected

    def _repeated(self, call: Callable[[], T]) -> T:
        started = time.monotonic()
        for repeats, pause in enumerate(pauses()):
            try:
                return call()
            except Unavailable as error:
                is_late = time.monotonic() - started + pause > REPEAT_TIME
                if error.kind not in TRANSIENT or repeats >= REPEATS or is_late:
                    raise
            time.sleep(pause)
        raise AssertionError("pauses never end")


class Task:
    """A task that was submitted. `status` is what it was when it was last asked for.

    `is_replayed`: the idempotency key was used before, and this is the first request's task.
    """

    __slots__ = ("_client", "id", "is_replayed", "status")

    def __init__(self, client: Client, submitted: Submitted) -> None:
        self._client = client
        self.id, self.status, self.is_replayed = submitted

    def wait(self, timeout: float | None = None) -> Any:
        """Return the result, as soon as there is one; see `Client.wait`."""
        return self._client.wait(self.id, timeout)

    def refresh(self) -> TaskRecord:
        """Return the task as it is now, and note its status; see `Client.get`."""
        record = self._client.get(self.id)
        self.status = record.status
        return record

    def cancel(self) -> str:
        """Cancel it; see `Client.cancel`."""
        return self._client.cancel(self.id)

    def __repr__(self) -> str:
        return f"Task(id={self.id!r}, status={self.status.value!r})"


def _chunks(submissions: Sequence[Submission]) -> Iterator[Sequence[Submission]]:
    for start in range(0, len(submissions), CALL_TASKS):
        chunk = submissions[start : start + CALL_TASKS]
        while sum(map(len, map(BODY, chunk))) > CALL_BYTES and len(chunk) > 1:
            sizes = accumulate(map(len, map(BODY, chunk)))
            fitting = max(1, sum(size <= CALL_BYTES for size in sizes))
            yield chunk[:fitting]
            chunk = chunk[fitting:]
        yield chunk
