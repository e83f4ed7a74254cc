"""Queues: what waits in them; pause and resume."""

from __future__ import annotations

from prefork_q.api.answers import Answer, Route, json_answer
from prefork_q.api.breaker import insist
from prefork_q.api.problems import Problem
from prefork_q.api.reading import Environ, read_options, read_query
from prefork_q.broker import Broker
from prefork_q.inspector import Inspector
from prefork_q.presentation import queue_as_json

NO_BODY = 1024
"""Bytes that are looked at where no body belongs."""


class Queues:
    """`/queues`."""

    def __init__(self, broker: Broker, inspector: Inspector) -> None:
        self._broker = broker
        self._inspector = inspector

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/queues", self.all, "read"),
            Route("POST", "/queues/<name:path>/pause", self.pause, "admin"),
            Route("POST", "/queues/<name:path>/resume", self.resume, "admin"),
        ]

    def all(self, environ: Environ) -> Answer:
        """All queues that somebody works on, or that a task was ever submitted to."""
        read_query(environ, ())
        return json_answer({"queues": [queue_as_json(one) for one in self._inspector.counts().queues]})

    def pause(self, environ: Environ, name: str) -> Answer:
        """Nothing more is claimed from it; what runs goes on."""
        read_options(environ, NO_BODY, ())
        return self._answer(name, insist(lambda: self._broker.pause(name)), is_paused=True)

    def resume(self, environ: Environ, name: str) -> Answer:
        read_options(environ, NO_BODY, ())
        return self._answer(name, insist(lambda: self._broker.resume(name)), is_paused=False)

    def _answer(self, name: str, word: str, *, is_paused: bool) -> Answer:
        if word == "missing":
            detail = f"nobody works on a queue {name[:100]!r}, and no task was ever submitted to it"
            raise Problem(404, detail)
        return json_answer({"name": name, "paused": is_paused})
