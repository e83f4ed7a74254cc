"""Who submits, cancels and retries while everything breaks, and keeps what it was answered."""

from __future__ import annotations

import heapq
import http.client
import itertools
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from prefork_q.client import Client
from prefork_q.errors import Conflict, NotFound, Unavailable
from tests.chaos.plan import Submission
from tests.support.node import Node

PATIENCE = 45.0
"""Seconds for which a submission with an idempotency key is repeated."""
THREADS = 8


@dataclass(frozen=True, slots=True)
class Accepted:
    """An answer that a task was taken in; `at` is when it came."""

    plan: Submission
    id: str
    at: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request about a task was answered: cancelled, requested, ended, ok, or why not."""

    id: str
    word: str
    at: float


class Unclear(Exception):
    """No answer, or one that leaves open whether it was done."""


class Clients:
    """Some threads. `go` takes a submission; what follows on it comes by itself."""

    def __init__(self, nodes: Sequence[Node], url: str, namespace: str) -> None:
        self._nodes = nodes
        self._client = Client(url, namespace)
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._open = 0
        self.submitted: dict[int, Submission] = {}
        self.accepted: list[Accepted] = []
        self.unclear: set[int] = set()
        """Labels of tasks of which it is not known whether they were taken in."""
        self.cancels: list[Answer] = []
        self.retries: list[Answer] = []
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def go(self, plan: Submission) -> None:
        """Have it submitted now."""
        self.submitted[plan.label] = plan
        self._put(lambda: self._submit(plan))

    def tick(self) -> None:
        """Begin what is due."""
        with self._lock:
            while self._later and self._later[0][0] <= time.time():
                self._work.put(heapq.heappop(self._later)[2])

    @property
    def is_idle(self) -> bool:
        with self._lock:
            return self._open == 0

    def close(self) -> None:
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(20)
        self._client.close()

    # -- threads

    def _put(self, work: Callable[[], None], *, after: float = 0.0) -> None:
        with self._lock:
            self._open += 1
            if after:
                heapq.heappush(self._later, (time.time() + after, next(self._numbers), work))
                return
        self._work.put(work)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception as error:
                self.failures.append(f"{type(error).__name__}: {error}")
            finally:
                with self._lock:
                    self._open -= 1

    # -- what they do

    def _submit(self, plan: Submission) -> None:
        until, via = time.time() + PATIENCE, plan.via
        while True:
            try:
                id = self._submit_once(plan, via)
                break
            except Unclear:
                if plan.idempotency_key is None or time.time() > until:
                    self.unclear.add(plan.label)
                    return
            # With its key it may be sent again, to anybody.
            via = random.randrange(-1, len(self._nodes))
            time.sleep(random.uniform(0.1, 0.5))
        self.accepted.append(Accepted(plan, id, time.time()))
        if plan.cancel_after is not None:
            self._put(lambda: self._cancel(id, plan.via), after=plan.cancel_after)
        if plan.retry_after is not None:
            self._put(lambda: self._retry(id, plan.via, 3), after=plan.retry_after)

    def _submit_once(self, plan: Submission, via: int) -> str:
        options = dict(plan.options)
        if plan.idempotency_key:
            options["idempotency_key"] = plan.idempotency_key
        if via < 0:
            try:
                return self._client.submit(plan.type, plan.payload, **options).id
            except Unavailable as error:
                raise Unclear(str(error)) from error
        body = {"type": plan.type, "payload": dict(plan.payload)} | {
            {"delay": "delay_s", "timeout": "timeout_s"}.get(name, name): value
            for name, value in options.items()
        }
        status, answer = self._http("POST", via, "/tasks", body)
        if status in (200, 202):
            id: str = answer["id"]
            return id
        if status == 503:
            raise Unclear(f"503: {answer}")
        raise AssertionError(f"POST /tasks answered {status}: {answer}")

    def _cancel(self, id: str, via: int) -> None:
        try:
            if via < 0:
                word = self._client.cancel(id)
            else:
                status, _ = self._http("POST", via, f"/tasks/{id}/cancel", None)
                word = {200: "cancelled", 202: "requested", 409: "ended", 503: "unclear"}[status]
        except Conflict:
            word = "ended"
        except NotFound:
            word = "missing"
        except (Unclear, Unavailable):
            word = "unclear"
        self.cancels.append(Answer(id, word, time.time()))

    def _retry(self, id: str, via: int, tries: int) -> None:
        try:
            if via < 0:
                self._client.retry(id)
                word = "ok"
            else:
                status, _ = self._http("POST", via, f"/dead/{id}/retry", None)
                word = {202: "ok", 404: "not_dead", 409: "not_dead", 503: "unclear"}[status]
        except (Conflict, NotFound):
            word = "not_dead"
        except (Unclear, Unavailable):
            word = "unclear"
        self.retries.append(Answer(id, word, time.time()))
        if word == "not_dead" and tries:
            self._put(lambda: self._retry(id, via, tries - 1), after=2)

    def _http(self, method: str, via: int, path: str, body: Any) -> tuple[int, Any]:
        try:
            reply = self._nodes[via].http(method, path, body, timeout=12)
        except (OSError, http.client.HTTPException) as error:
            raise Unclear(f"{type(error).__name__}: {error}") from error
        try:
            return reply.status, reply.json
        except ValueError:
            return reply.status, reply.body
