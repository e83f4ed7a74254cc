"""Tasks as tests of workers see them: submitted for the handlers of `tests.support.handlers`, looked up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import redis

from prefork_q.broker import Broker
from prefork_q.ids import new_id
from prefork_q.inspector import Inspector
from prefork_q.keys import Keys
from prefork_q.states import ENDED, Status
from prefork_q.task import Submission, TaskRecord
from tests.support.until import until


class Tasks:
    """The tasks of one namespace."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._keys = keys
        self._client: Any = client
        self.broker = Broker(client, keys)
        self._inspector = Inspector(client, keys)

    def submit(self, type: str, payload: object = None, *, n: int = 1, **options: Any) -> list[str]:
        """Submit `n` of a type; `options` are those of `Submission`."""
        body = orjson.dumps({} if payload is None else payload)
        ids = [new_id() for _ in range(n)]
        for start in range(0, n, 500):
            self.broker.submit([Submission(id, type, body, **options) for id in ids[start : start + 500]])
        return ids

    def submit_one(self, type: str, payload: object = None, **options: Any) -> str:
        return self.submit(type, payload, **options)[0]

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is submitted meanwhile, to a queue that exists, can be claimed in one call afterwards."""
        self.broker.pause("default")
        yield
        self.broker.resume("default")

    def get(self, id: str) -> TaskRecord:
        record = self._inspector.get(id)
        assert record is not None
        return record

    def status(self, id: str) -> Status:
        return self.get(id).status

    def statuses(self, ids: Iterable[str]) -> set[Status]:
        return {self.status(id) for id in ids}

    def wait(self, *ids: str, status: str | None = None, timeout: float = 15.0) -> None:
        """Wait until all have the status, or have ended."""
        wanted = ENDED | {Status.DEAD} if status is None else {Status(status)}
        left = list(ids)

        def are_there() -> bool:
            while left and self.status(left[-1]) in wanted:
                left.pop()
            return not left

        until(are_there, timeout, f"{len(ids)} tasks that are {status or 'at their end'}")

    def total(self, name: str) -> int:
        """A counter of the namespace."""
        return int(self._client.hget(self._keys("totals"), name) or 0)

    def pending(self, queue: str = "default") -> int:
        return int(self._client.llen(self._keys.pending(queue)))

    def make_due(self, *ids: str) -> None:
        """Move delayed tasks to their queues, as the mover does when they are due."""
        self._client.zadd(self._keys("delayed"), dict.fromkeys(ids, 0), xx=True)
        self.broker.promote()
