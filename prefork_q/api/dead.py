"""The dead: what failed for the last time. They are kept until somebody retries or deletes them."""

from __future__ import annotations

import time
import uuid
from functools import partial

from prefork_q.api.answers import Answer, Route, json_answer
from prefork_q.api.breaker import insist
from prefork_q.api.listing import answer_page
from prefork_q.api.problems import Flaw, Problem
from prefork_q.api.queues import NO_BODY
from prefork_q.api.reading import Environ, instant, read_options, read_query
from prefork_q.broker import Broker
from prefork_q.ids import is_id
from prefork_q.inspector import Cursor, Inspector
from prefork_q.keys import NAME, NAME_RULE
from prefork_q.presentation import as_json
from prefork_q.states import Status

RETRY_DEFAULT, RETRY_LIMIT = 1_000, 10_000
"""Tasks that one `POST /dead/retry` retries, if it does not say how many, and at most."""
RETRY_TIME = 10.0
"""Seconds after which it answers with what it has done, and that there is more."""


class Dead:
    """`/dead`."""

    def __init__(self, broker: Broker, inspector: Inspector) -> None:
        self._broker = broker
        self._inspector = inspector

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/dead", self.page, "read"),
            Route("POST", "/dead/retry", self.retry_many, "admin"),
            Route("GET", "/dead/<id:re:(?!retry$)[^/]+>", self.show, "read"),
            Route("DELETE", "/dead/<id:re:(?!retry$)[^/]+>", self.delete, "admin"),
            Route("POST", "/dead/<id>/retry", self.retry, "admin"),
        ]

    def page(self, environ: Environ) -> Answer:
        """A page, the newest first."""
        query = read_query(environ, ("type", "queue", "limit", "cursor"))
        return answer_page(self._inspector, Status.DEAD, query)

    def show(self, environ: Environ, id: str) -> Answer:
        read_query(environ, ())
        task = self._inspector.get(id) if is_id(id) else None
        if task is None or task.status is not Status.DEAD:
            raise not_dead(id)
        return json_answer(as_json(task))

    def retry(self, environ: Environ, id: str) -> Answer:
        """Attempts and crashes start anew."""
        read_options(environ, NO_BODY, ())
        if not is_id(id) or self._retry([id], uuid.uuid4().hex) != ["ok"]:
            raise not_dead(id)
        return json_answer({"id": id, "status": Status.PENDING}, 202, [("Location", f"/tasks/{id}")])

    def retry_many(self, environ: Environ) -> Answer:
        """Retry the newest of a type, or of all, that died before some time."""
        options = read_options(environ, 4096, ("type", "before", "limit"))
        type, before, limit = read_choice(options)
        nonce, until = uuid.uuid4().hex, time.monotonic() + RETRY_TIME
        retried, cursor, is_more = 0, None, True
        while is_more and retried < limit and time.monotonic() < until:
            ids, cursor = self._next(type, before, limit - retried, cursor)
            retried += self._retry(ids, nonce).count("ok") if ids else 0
            is_more = cursor is not None
        return json_answer({"retried": retried, "more": is_more}, 202, retried=retried, type=type)

    def delete(self, environ: Environ, id: str) -> Answer:
        read_options(environ, NO_BODY, ())
        if not is_id(id) or self._broker.delete([id]) != ["ok"]:
            raise not_dead(id)
        return Answer(204)

    def _next(
        self, type: str | None, before: float | None, limit: int, cursor: Cursor | None
    ) -> tuple[list[str], Cursor | None]:
        look = partial(self._inspector.dead_ids, type=type, before=before, limit=limit, cursor=cursor)
        return insist(look)

    def _retry(self, ids: list[str], nonce: str) -> list[str]:
        return insist(lambda: self._broker.retry(ids, nonce=nonce))


def read_choice(options: dict[str, object]) -> tuple[str | None, float | None, int]:
    """Return type, before (seconds since the epoch) and limit.

    Raises:
        Problem: one of them is wrong.
    """
    type, before, limit = options.get("type"), options.get("before"), options.get("limit", RETRY_DEFAULT)
    if "type" in options and not (isinstance(type, str) and NAME.fullmatch(type)):
        raise wrong("/type", f"write the name of a type: {NAME_RULE}")
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise wrong("/limit", f"write a whole number from 1 to {RETRY_LIMIT}")
    moment = None
    if "before" in options:
        try:
            moment = instant(before if isinstance(before, str) else "")
        except ValueError as error:
            raise wrong("/before", str(error)) from None
    return (type if isinstance(type, str) else None), moment, min(limit, RETRY_LIMIT)


def wrong(pointer: str, detail: str) -> Problem:
    return Problem(422, f"{pointer}: {detail}", [Flaw(pointer, detail)])


def not_dead(id: str) -> Problem:
    return Problem(404, f"there is no dead task {id[:100]!r}")
