"""Waits for a task to end by listening, not by asking again and again.

The order makes that safe: subscribe, then mark the task as waited for and look at its status,
then listen. What ends the task before the look is seen by the look; what ends it after the look
publishes to a channel that is already listened to.
"""

from __future__ import annotations

import random
import select
import time
from collections.abc import Iterator
from typing import Final

from prefork_q.broker import Broker
from prefork_q.connection import COMMAND_TIMEOUT, Link
from prefork_q.errors import NotFound, Unavailable
from prefork_q.keys import Keys
from prefork_q.states import Status

LOOK_AGAIN: Final = 30.0
"""Seconds of silence after which the status is looked at once more: a bound on any lost message."""
TRANSIENT: Final = frozenset({"connection", "timeout", "loading", "readonly", "busy"})
"""Kinds of `Unavailable` that may pass by themselves."""


def pauses(*, first: float = 0.05, cap: float = 1.0) -> Iterator[float]:
    """Yield the seconds to wait before each next try: doubling, with jitter, without end."""
    pause = first
    while True:
        yield pause * (0.5 + random.random())
        pause = min(pause * 2, cap)


def wait_until_ended(
    url: str, keys: Keys, broker: Broker, id: str, *, timeout: float | None
) -> Status | None:
    """Return the status with which a task has ended, or None if it has not within `timeout` seconds.

    A connection that is lost is made again for as long as there is time; None has no end of its
    own, though each wait within has. It uses one connection of its own, and closes it.

    Raises:
        NotFound: there is no such task (any more).
        Unavailable: Redis denies it, or could not be reached when the time was over.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    for pause in pauses():
        try:
            return _listen(url, keys, broker, id, deadline)
        except Unavailable as error:
            left = _left(deadline, pause)
            if error.kind not in TRANSIENT or left <= 0:
                raise
            time.sleep(left)
    raise AssertionError("pauses never end")


def _listen(url: str, keys: Keys, broker: Broker, id: str, deadline: float | None) -> Status | None:
    link = Link(url, timeout=max(_left(deadline, COMMAND_TIMEOUT), 0.1))
    try:
        link.connect()
        link.send("SUBSCRIBE", keys.ended(id))
        link.receive()
        while True:
            status = broker.watch(id)
            if status == "missing":
                raise NotFound(f"there is no task {id}")
            if Status(status).has_ended:
                return Status(status)
            left = _left(deadline, LOOK_AGAIN)
            if left <= 0:
                return None
            if _is_readable(link, left):
                # The message: the next look sees the end of which it tells.
                link.receive()
    finally:
        link.close()


def _is_readable(link: Link, seconds: float) -> bool:
    poller = select.poll()
    poller.register(link.fileno(), select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def _left(deadline: float | None, at_most: float) -> float:
    return at_most if deadline is None else min(deadline - time.monotonic(), at_most)
