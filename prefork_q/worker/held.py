"""A task that this worker holds, and what became of it. Shared by the main and processor threads."""

from __future__ import annotations

from typing import Literal, NamedTuple

from prefork_q.broker import Lease
from prefork_q.worker.routes import Route

OutcomeName = Literal["succeeded", "retrying", "dead", "released"]


class Held:
    """A leased task between its claim and its commit.

    Made by the main thread; `is_started` is set by the processor that takes it, everything
    else stays as it is.
    """

    __slots__ = ("claimed_at", "cost", "index", "is_started", "lease", "route")

    def __init__(self, lease: Lease, index: int, claimed_at: float, route: Route | None, cost: float) -> None:
        self.lease = lease
        self.index = index
        """Its place in the scoreboard's table of held tasks."""
        self.claimed_at = claimed_at
        """Boot time, taken before the claim was sent."""
        self.route = route
        self.cost = cost
        """Seconds that it is expected to run; infinite if its type is slow or not known yet."""
        self.is_started = False


class Outcome(NamedTuple):
    """What became of one attempt; one of a closed set of names.

    `text` is the result or the error as JSON. `delay` in seconds, None for none. `ran` is how
    long the handler ran, in seconds.
    """

    held: Held
    name: OutcomeName
    ran: float = 0.0
    text: bytes = b""
    delay: float | None = None
    error_type: str | None = None
    error_message: str | None = None
