"""What the master knows of its processes, and the places that they fill. Pure: no system calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from prefork_q.ipc.channel import Channel
from prefork_q.ipc.messages import Failed
from prefork_q.master.deadlines import Backoff

STORE: Final = "store"
KEEPER: Final = "keeper"
API: Final = "api"
TEMPLATE: Final = "template"
WORKER: Final = "worker"


@dataclass(slots=True, eq=False)
class Child:
    """One process, from the moment that it is asked for until it was waited for.

    `pid` is None until it is known. `newborn_end` is the other end of the channel, open here only
    until it is sent. `stopping`: the master told it to stop, so its death is no crash; `killed_for`:
    why the master killed it. `farewell`: what it said of its failure.
    """

    place: Place
    incarnation: str
    generation: int
    channel: Channel
    asked_at: float
    pid: int | None = None
    newborn_end: Channel | None = None
    is_greeted: bool = False
    is_ready: bool = False
    is_hung_up: bool = False
    stopping: bool = False
    killed_for: str | None = None
    farewell: Failed | None = None

    @property
    def role(self) -> str:
        return self.place.role

    @property
    def state(self) -> str:
        """starting, ready or draining."""
        if self.stopping:
            return "draining"
        return "ready" if self.is_ready else "starting"

    def who(self) -> dict[str, Any]:
        """The fields that name it in the log."""
        if self.role == WORKER:
            return {"worker": self.place.number, "gen": self.generation, "pid": self.pid}
        if self.role == API:
            return {"role": self.role, "api": self.place.number, "pid": self.pid}
        return {"role": self.role, "pid": self.pid}


@dataclass(slots=True, eq=False)
class Place:
    """A numbered place of a role that is to be filled again whenever its process ends."""

    role: str
    number: int = 0
    child: Child | None = None
    births: int = 0
    due_at: float = 0.0
    was_ever_ready: bool = False
    last_cause: str | None = None
    backoff: Backoff = field(default_factory=Backoff)

    @property
    def restarts(self) -> int:
        return max(0, self.births - 1)

    @property
    def is_failing(self) -> bool:
        """Whether the last process died before it was ready, and none has become it since."""
        return self.backoff.failures > 0 and not (self.child is not None and self.child.is_ready)

    @property
    def state(self) -> str:
        """As in the status: starting, ready, draining or backoff."""
        if self.child is not None:
            return self.child.state
        return "backoff" if self.is_failing else "starting"

    @property
    def name(self) -> str:
        return f"{self.role} {self.number}" if self.role in (WORKER, API) else self.role

    def filled(self, child: Child) -> None:
        self.child = child
        self.births += 1

    def became_ready(self) -> None:
        self.was_ever_ready = True
        self.backoff.is_ready()

    def emptied(self, now: float, cause: str, *, was_ready: bool) -> float:
        """Its process is gone. Return in how many seconds the next may be born."""
        self.child = None
        self.last_cause = cause
        delay = self.backoff.died(was_ready=was_ready)
        self.due_at = now + delay
        return delay


class Slots:
    """All places of the node, in the order in which they are filled."""

    def __init__(self, *, workers: int, apis: int, has_store: bool) -> None:
        self.store = Place(STORE) if has_store else None
        self.keeper = Place(KEEPER)
        self.apis = [Place(API, number) for number in range(apis)]
        self.template = Place(TEMPLATE)
        self.workers = [Place(WORKER, number) for number in range(workers)]

    def places(self) -> Iterator[Place]:
        if self.store is not None:
            yield self.store
        yield self.keeper
        yield from self.apis
        yield self.template
        yield from self.workers

    def children(self, *roles: str) -> list[Child]:
        """Return the processes that are not waited for yet, of these roles or of all."""
        living = (place.child for place in self.places() if not roles or place.role in roles)
        return [child for child in living if child is not None]

    def by_pid(self, pid: int) -> Child | None:
        return next((child for child in self.children() if child.pid == pid), None)

    def by_incarnation(self, incarnation: str) -> Child | None:
        return next((child for child in self.children() if child.incarnation == incarnation), None)

    def vacant(self, now: float) -> list[Place]:
        """Return the places that wait for a process and may have one now."""
        return [place for place in self.places() if place.child is None and place.due_at <= now]

    def next_due(self) -> float | None:
        """When the next vacant place may be filled; None if all are filled."""
        return min((place.due_at for place in self.places() if place.child is None), default=None)

    @property
    def ready_workers(self) -> int:
        return sum(child.state == "ready" for child in self.children(WORKER))

    @property
    def is_complete(self) -> bool:
        """Whether every place has a process that is ready."""
        return all(place.child is not None and place.child.is_ready for place in self.places())
