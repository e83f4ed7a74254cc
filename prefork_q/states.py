"""The life cycle of a task, as data. DESIGN.md draws it, `lua/` carries it out.

A row that lacks its script, its `Broker` method or its line in DESIGN.md fails a test by name.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Status(StrEnum):
    """The six statuses; a task is in exactly one."""

    PENDING = "pending"
    PROCESSING = "processing"
    DELAYED = "delayed"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        """Whether nothing but an operator's retry can change it any more."""
        return self in ENDED


ENDED = frozenset({Status.SUCCEEDED, Status.DEAD, Status.CANCELLED})
OPEN = frozenset(Status) - ENDED


class Transition(NamedTuple):
    """One row: the verb (also the script's name) that takes a task from one status to another."""

    verb: str
    before: Status | None
    after: Status
    when: str


NEW = None
P, R, D = Status.PENDING, Status.PROCESSING, Status.DELAYED
S, X, C = Status.SUCCEEDED, Status.DEAD, Status.CANCELLED

TRANSITIONS: tuple[Transition, ...] = (
    Transition("submit", NEW, P, "accepted, due now"),
    Transition("submit", NEW, D, "accepted, due later"),
    Transition("claim", P, R, "a worker has room; the attempt counts"),
    Transition("claim", P, X, "its payload is no longer stored"),
    Transition("complete", R, S, "the handler returned"),
    Transition("fail", R, D, "the handler raised, attempts are left"),
    Transition("fail", R, X, "the handler raised for the last time, or rejected the task"),
    Transition("fail", R, C, "the handler raised, and a cancellation was asked for"),
    Transition("release", R, P, "given back unstarted or interrupted; the attempt does not count"),
    Transition("release", R, D, "given back for later: its type is unknown here, or a suspect finds no room"),
    Transition("release", R, X, "no worker knew the type for too long"),
    Transition("release", R, C, "given back, and a cancellation was asked for"),
    Transition("promote", D, P, "due"),
    Transition("reap", R, P, "the lease expired; a loss if the task had started"),
    Transition("reap", R, X, "the lease expired once too often"),
    Transition("reap", R, C, "the lease expired, and a cancellation was asked for"),
    Transition("hand_back", R, P, "its worker died; a crash if the task was running"),
    Transition("hand_back", R, D, "it was killed for its time limit, attempts are left"),
    Transition("hand_back", R, X, "it took down a worker once too often, or timed out for the last time"),
    Transition("hand_back", R, C, "its worker died, and a cancellation was asked for"),
    Transition("cancel", P, C, "cancelled before it ran"),
    Transition("cancel", D, C, "cancelled before it was due"),
    Transition("retry", X, P, "an operator's decision; attempts, crashes and losses start anew"),
)

FUSED = {"commit": ("complete", "fail", "release", "claim")}
"""Scripts that carry out several verbs in one call."""
