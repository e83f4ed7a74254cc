"""A task that this worker holds, and what became of it. Shared by the main and processor threads.

Plain classes with slots: of all that Python offers they are the quickest to make and to read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prefork_q.broker import Lease
from prefork_q.worker.routes import Route

OutcomeName = Literal["succeeded", "retrying", "dead", "released"]


class Held:
    """A leased task between its claim and its commit.

    Made by the main thread. `is_started` is set by the processor that takes it, `is_over` by the
    main thread; everything else stays as it is. What the lease says of the task is here as it is
    there.
    """

    __slots__ = (
        "arrived_at",
        "attempt",
        "body",
        "claimed_at",
        "cost",
        "crashes",
        "id",
        "index",
        "is_over",
        "is_started",
        "max_attempts",
        "queue",
        "route",
        "timeout_ms",
        "token",
        "type",
    )  # fmt: skip

    def __init__(
        self,
        lease: Lease,
        route: Route | None,
        index: int,
        claimed_at: float,
        arrived_at: float,
        cost: float | None,
    ) -> None:
        (
            self.id, self.type, self.queue, self.body, self.attempt, self.max_attempts, self.crashes,
            self.timeout_ms, _, self.token,
        ) = lease  # fmt: skip
        self.route = route
        self.index = index
        """Its place in the scoreboard's table of held tasks."""
        self.claimed_at = claimed_at
        """Boot time, not after the lease began."""
        self.arrived_at = arrived_at
        """Boot time at which the claim was answered."""
        self.cost = cost
        """Seconds that it is expected to run; None if its type is slow or not known yet."""
        self.is_started = False
        self.is_over = False
        """Whether an outcome of it is on its way to Redis; later ones do not count."""

    @property
    def type_name(self) -> str:
        """The name of its type, as people read it."""
        return self.type.decode("utf-8", "replace") if self.route is None else self.route.name


@dataclass(slots=True, eq=False)
class Outcome:
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
