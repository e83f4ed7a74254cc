"""A task that this worker holds, and what became of it. Shared by the main and processor threads.

Plain classes with slots: of all that Python offers they are the quickest to make and to read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prefork_q.worker.routes import Route

OutcomeName = Literal["succeeded", "retrying", "dead", "released"]


@dataclass(slots=True, eq=False)
class Lot:
    """What tasks of one claim have in common. Made by the main thread; nothing of it changes."""

    type: bytes
    queue: bytes
    attempt: int
    max_attempts: int
    crashes: int
    timeout: float
    """Seconds that an attempt may take, 0 for any time."""
    token: int
    route: Route | None
    """None: the type is unknown here."""
    claimed_at: float
    """Boot time, not after the leases began."""
    arrived_at: float
    """Boot time at which the claim was answered."""
    cost: float | None
    """Seconds that each is expected to run; None if the type is slow or its pace not known yet."""

    @property
    def type_name(self) -> str:
        return self.type.decode("utf-8", "replace") if self.route is None else self.route.name


class Held:
    """A leased task between its claim and its commit.

    Made by the main thread. `is_started` is set by the processor that takes it, `is_over` by the
    main thread; everything else stays as it is.
    """

    __slots__ = ("body", "id", "index", "is_over", "is_started", "lot")

    def __init__(self, lot: Lot, id: bytes, body: bytes, index: int) -> None:
        self.lot = lot
        self.id = id
        self.body = body
        self.index = index
        """Its place in the scoreboard's table of held tasks."""
        self.is_started = False
        self.is_over = False
        """Whether an outcome of it is on its way to Redis; later ones do not count."""


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
