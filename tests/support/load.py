"""A steady load over HTTP: tasks submitted at a rate, from several connections, and what went wrong."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support.node import Node


class Load:
    """What was submitted so far. Half of the connections are kept open, half are made for each request."""

    def __init__(
        self, node: Node, type: str, payload: Mapping[str, Any], rate: float, connections: int, batch: int
    ) -> None:
        self.ids: list[str] = []
        self.errors: list[str] = []
        self._node = node
        task = {"type": type, "payload": dict(payload)}
        self._path = "/tasks" if batch == 1 else "/tasks/batch"
        self._body = json.dumps(task if batch == 1 else {"tasks": [task] * batch}).encode()
        self._pause = connections * batch / rate
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._submit, args=(number % 2 == 0,)) for number in range(connections)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _submit(self, is_kept: bool) -> None:
        connection: http.client.HTTPConnection | None = None
        due = time.monotonic()
        while not self._is_over.wait(max(0.0, due - time.monotonic())):
            # Late ones are not made up for: the load is at most that of the rate.
            due = max(due + self._pause, time.monotonic())
            if connection is None:
                connection = http.client.HTTPConnection("127.0.0.1", self._node.port, timeout=15)
            try:
                connection.request("POST", self._path, self._body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                told = answer.read()
                if answer.status == 202:
                    answered = json.loads(told)
                    self.ids += [task["id"] for task in answered.get("tasks", [answered])]
                else:
                    self.errors.append(f"{answer.status}: {told!r}")
            except (OSError, http.client.HTTPException) as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                connection.close()
            if not is_kept or connection.sock is None:
                connection.close()
                connection = None
        if connection is not None:
            connection.close()


@contextmanager
def load(
    node: Node, type: str, payload: Mapping[str, Any], *, rate: float, connections: int = 4, batch: int = 1
) -> Iterator[Load]:
    """Submit tasks at that rate a second for the length of the block, so many in a request."""
    running = Load(node, type, payload, rate, connections, batch)
    running.start()
    try:
        yield running
    finally:
        running.stop()
