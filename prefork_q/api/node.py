"""What the api asks the node's master, over the control socket: never longer than a short while."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from prefork_q.control.client import ask
from prefork_q.errors import PreforkQError

TIMEOUT = 1.0
"""Seconds; a master answers within milliseconds, and a probe does not wait for long."""


class Node:
    """The node that this api belongs to. Used from any thread."""

    def __init__(self, ctl_socket: str | os.PathLike[str]) -> None:
        self._path = ctl_socket

    def metrics(self) -> Mapping[str, Any] | None:
        """Return the numbers of this node, None if its master does not answer."""
        try:
            metrics: Mapping[str, Any] = ask(self._path, "metrics", timeout=TIMEOUT)
        except PreforkQError:
            return None
        return metrics

    def ready_workers(self) -> int:
        """Return how many workers are ready, and neither deaf nor stopped: one that is busy counts.

        Raises:
            PreforkQError: the master does not answer.
        """
        workers = ask(self._path, "workers", timeout=TIMEOUT)
        return sum(
            worker["state"] == "ready" and worker.get("condition") not in ("deaf", "stopped")
            for worker in workers
        )
