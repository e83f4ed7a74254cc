"""For probes: does the process answer, and is there somebody to do the work."""

from __future__ import annotations

from typing import Final

from prefork_q.api.answers import Answer, Route, json_answer
from prefork_q.api.node import Node
from prefork_q.api.problems import Problem
from prefork_q.api.reading import Environ
from prefork_q.errors import PreforkQError
from prefork_q.inspector import Inspector

ALIVE: Final = "/healthz"
"""The server has a thread of its own for it: it is answered whatever holds up the others."""


class Health:
    """`GET /healthz`, `GET /readyz`."""

    def __init__(self, inspector: Inspector, node: Node) -> None:
        self._inspector = inspector
        self._node = node

    def routes(self) -> list[Route]:
        return [
            Route("GET", ALIVE, self.alive, None, needs_redis=False),
            Route("GET", "/readyz", self.ready, "read"),
        ]

    def alive(self, environ: Environ) -> Answer:
        """Asks nobody: it says that this process answers."""
        return json_answer({"status": "ok"})

    def ready(self, environ: Environ) -> Answer:
        self._inspector.ping()
        ready = self._ready_workers()
        if not ready:
            raise Problem(503, "no worker is ready", headers=[("Retry-After", "1")])
        return json_answer({"status": "ready", "workers": ready})

    def _ready_workers(self) -> int:
        """Return how many there are on this node; on all if its master does not answer, or there is none here
        (`prefork-q api`)."""
        try:
            return self._node.ready_workers()
        except PreforkQError:
            return sum(node.ready for node in self._inspector.nodes())
