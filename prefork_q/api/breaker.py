"""Keeps requests from piling up behind a Redis that takes commands and does not answer.

Each such request holds a thread until its time limit; soon all would be held, and clients would wait
for long only to be refused. So after one has waited in vain the others are refused at once, and one a
second may try whether Redis is back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from prefork_q.errors import Unavailable

T = TypeVar("T")


def insist(function: Callable[[], T]) -> T:
    """Return what `function` returns, the second time if the first failed for its connection.

    That was most often one from before a restart of Redis, or one that a firewall has dropped. It may have
    been carried out all the same, so this is only for what is the same twice.

    Raises:
        Unavailable: it failed otherwise, or again.
    """
    try:
        return function()
    except Unavailable as error:
        if error.kind != "connection":
            raise
    return function()


PAUSE = 1.0
"""Seconds between two tries."""


class Breaker:
    """Runs what needs Redis. Used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_try: float | None = None
        """While Redis does not answer: when somebody may try again (monotonic)."""

    def run(self, function: Callable[[], T]) -> T:
        """Return what `function` returns.

        Raises:
            Unavailable: by itself, or Redis did not answer others a moment ago.
        """
        self._enter()
        try:
            result = function()
        except Unavailable as error:
            if error.kind == "timeout":
                with self._lock:
                    self._next_try = time.monotonic() + PAUSE
            raise
        except Exception:
            # It may not have come as far as to Redis: the next one finds out, and need not wait for it.
            with self._lock:
                if self._next_try is not None:
                    self._next_try = time.monotonic()
            raise
        with self._lock:
            self._next_try = None
        return result

    def _enter(self) -> None:
        with self._lock:
            if self._next_try is None:
                return
            now = time.monotonic()
            if now < self._next_try:
                raise Unavailable("Redis does not answer; it is tried again each second", kind="timeout")
            self._next_try = now + PAUSE
