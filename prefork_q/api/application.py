"""The WSGI application: finds the endpoint, and turns whatever happens into an answer."""

from __future__ import annotations

import re
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

import bottle

from prefork_q.api.access import Access
from prefork_q.api.answers import Answer, Route
from prefork_q.api.breaker import Breaker, insist
from prefork_q.api.problems import Problem, problem_of
from prefork_q.api.reading import SAFE_METHODS, Environ
from prefork_q.errors import PreforkQError, Unavailable
from prefork_q.events import Events

CONTROL = re.compile(r"[\x00-\x1f\x7f]")
TELL = 60.0
"""Seconds between two lines of the log about the same kind of trouble with Redis."""
StartResponse = Callable[..., Any]


class Application:
    """Answers requests; a callable as PEP 3333 describes. Used from any thread.

    `on_unavailable` is called with the kind of trouble whenever Redis could not do something.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        events: Events,
        breaker: Breaker,
        access: Access,
        *,
        on_unavailable: Callable[[str], None] = lambda kind: None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._events = events
        self._breaker = breaker
        self._access = access
        self._on_unavailable = on_unavailable
        self._on_close = on_close
        self._lock = threading.Lock()
        self._tell_at: dict[str, float] = {}
        """By kind of trouble: when the log may be told again (monotonic)."""
        # bottle finds the function; what it would make of errors and answers is for browsers.
        self._router = bottle.Router()
        for route in routes:
            self._router.add(route.rule, route.method, route)

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> list[bytes]:
        try:
            answer = self._answer(environ)
            status = f"{answer.status} {HTTPStatus(answer.status).phrase}"
            body, headers = answer.body, [("Cache-Control", "no-store"), *answer.headers]
            if answer.status != HTTPStatus.NO_CONTENT:
                headers.append(("Content-Type", answer.content_type))
        except Problem as problem:
            status, headers, body = problem.status_line, problem.headers(), problem.body()
        if not status.startswith("204"):
            headers.append(("Content-Length", str(len(body))))
        start_response(status, [*headers, ("X-Content-Type-Options", "nosniff")])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def refusal(self, environ: Environ) -> Problem | None:
        """Return why a request is refused whatever its body says; None if that depends on its body.

        Of `environ` the method, the path, REMOTE_ADDR and the header fields are looked at. A server that
        knows them before the body can ask; whoever does not is told the same by the call.
        """
        try:
            route, _ = self._find(environ)
            self._access.admit(environ, route.scope)
        except Problem as problem:
            return problem
        return None

    def close(self) -> None:
        """Let requests that wait for something be answered now. The server calls it when it drains."""
        self._on_close()

    def _answer(self, environ: dict[str, Any]) -> Answer:
        route, arguments = self._find(environ)
        token = self._access.admit(environ, route.scope)
        try:
            answer = self._run(route, environ, arguments)
        except Problem as problem:
            self._access.note(environ, route.scope, token, problem.status, arguments)
            raise
        self._access.note(environ, route.scope, token, answer.status, {**arguments, **answer.noted})
        return answer

    def _run(self, route: Route, environ: dict[str, Any], arguments: dict[str, str]) -> Answer:
        try:
            call = partial(route.function, environ, **arguments)
            if not route.needs_redis:
                return call()
            is_read = route.method in SAFE_METHODS
            return self._breaker.run((lambda: insist(call)) if is_read else call)
        except Problem:
            raise
        except PreforkQError as error:
            if isinstance(error, Unavailable):
                self._tell(error)
                self._on_unavailable(error.kind)
            problem = problem_of(error)
            if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
                raise self._failed(environ) from error
            raise problem from error
        except Exception as error:
            raise self._failed(environ) from error

    def _find(self, environ: Environ) -> tuple[Route, dict[str, str]]:
        """Return the endpoint of this request and the parts of its path.

        Raises:
            Problem: there is none.
        """
        try:
            path = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8")
        except UnicodeError:
            raise Problem(400, "the path is not UTF-8 in percent-encoding") from None
        if CONTROL.search(path):
            # A rule's end would match before a line feed too.
            raise Problem(404, f"there is nothing at {path[:200]!r}")
        method = environ["REQUEST_METHOD"]
        try:
            found: tuple[Route, dict[str, str]] = self._router.match(
                {"REQUEST_METHOD": method, "PATH_INFO": path}
            )
            return found
        except bottle.HTTPError as error:
            allowed = (
                error.get_header("Allow") if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED else None
            )
            if allowed is None:
                raise Problem(404, f"there is nothing at {path[:200]!r}") from None
            allowed = with_head(allowed.split(","))
            raise Problem(
                405, f"{method[:20]} is not possible here; possible: {allowed}", headers=[("Allow", allowed)]
            ) from None

    def _tell(self, error: Unavailable) -> None:
        """Tell the log what is in no answer, once in a while."""
        now = time.monotonic()
        with self._lock:
            is_told = now >= self._tell_at.get(error.kind, now)
            if is_told:
                self._tell_at[error.kind] = now + TELL
        if is_told:
            self._events.emit("redis_failed", level="warning", kind=error.kind, error=str(error))

    def _failed(self, environ: Environ) -> Problem:
        """Tell the log of an error that is ours, and return what the client may know of it."""
        self._events.emit(
            "request_failed",
            level="error",
            method=environ["REQUEST_METHOD"],
            path=environ.get("PATH_INFO", ""),
            traceback=traceback.format_exc(),
        )
        return Problem(500, "an error of ours; the log has the rest")


def with_head(methods: Sequence[str]) -> str:
    """Return the value of Allow; where GET is possible HEAD is too."""
    return ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
