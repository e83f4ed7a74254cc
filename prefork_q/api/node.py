"""What the api asks the node's master, over the control socket: never longer than a short while."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from prefork_q.api.answers import Answer, Route, json_answer
from prefork_q.api.problems import Problem
from prefork_q.api.reading import Environ, read_query
from prefork_q.control.client import NotRunning, ask
from prefork_q.errors import PreforkQError

TIMEOUT = 1.0
"""Seconds; a master answers within milliseconds, and a probe does not wait for long."""


class Node:
    """The node that this api belongs to, and `GET /node`. Used from any thread."""

    def __init__(self, ctl_socket: str | os.PathLike[str]) -> None:
        self._path = ctl_socket

    def routes(self) -> list[Route]:
        return [Route("GET", "/node", self.show, "read", needs_redis=False)]

    def show(self, environ: Environ) -> Answer:
        """The same as `ctl status --json`."""
        read_query(environ, ())
        try:
            return json_answer(ask(self._path, "status", timeout=TIMEOUT))
        except NotRunning:
            raise Problem(404, "no node is here: this API runs without workers of its own") from None
        except PreforkQError:
            detail = "the node's master does not answer"
            raise Problem(503, detail, headers=[("Retry-After", "1")]) from None

    def metrics(self) -> Mapping[str, Any] | None:
        """Return the numbers of this node, None if its master does not answer."""
        try:
            metrics: Mapping[str, Any] = ask(self._path, "metrics", timeout=TIMEOUT)
        except PreforkQError:
            return None
        return metrics

    def ready_workers(self) -> int:
        """Return how many workers are ready and take tasks: not deaf, stopped or unserved; a busy one counts.

        Raises:
            PreforkQError: the master does not answer.
        """
        workers = ask(self._path, "workers", timeout=TIMEOUT)
        return sum(
            worker["state"] == "ready" and worker.get("condition") not in ("deaf", "stopped", "unserved")
            for worker in workers
        )
