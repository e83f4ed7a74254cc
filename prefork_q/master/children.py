"""What the master knows of its processes, and the places that they fill. Pure: no system calls."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from socket import socket
from typing import Any, Final

from prefork_q.ipc.channel import Channel
from prefork_q.ipc.messages import Failed
from prefork_q.ipc.stacks import StackFile
from prefork_q.master.deadlines import Backoff

STORE: Final = "store"
KEEPER: Final = "keeper"
API: Final = "api"
TEMPLATE: Final = "template"
WORKER: Final = "worker"
WATCHER: Final = "watcher"

OUT_OF_TEMPLATE: Final = (WORKER, API)
"""The roles whose processes the template makes."""


@dataclass(slots=True, eq=False)
class Child:
    """One process, from the moment that it is asked for until it was waited for.

    `pid` is None until it is known. `newborn_end` is the other end of the channel, and `newborn_sockets` are
    copies of the sockets on which it is to serve, open here only until they are sent. `cell` is its row of
    the scoreboard, if it has one. `made_by` is the template that was asked for it. `stopping`: the master
    told it to stop; `killed_for`: why the master killed it. `farewell`: what it
    said of its failure. `heard_at`: when it last said anything, boot time. `cause`: why it is gone, once
    it is.

    Of a worker: `stacks` is the file for what its threads do; `retires_for` why it leaves of its own accord,
    `is_hurried` that somebody does not want to wait for that; `has_hook_time`: its start hook was given more;
    `is_charged`: the master killed it, and for what runs in it; `killed_as`: the word for it in the metrics.
    """

    place: Place
    incarnation: str
    generation: int
    channel: Channel
    asked_at: float
    pid: int | None = None
    newborn_end: Channel | None = None
    newborn_sockets: tuple[socket, ...] = ()
    cell: int | None = None
    threads: int = 1
    made_by: Child | None = None
    is_greeted: bool = False
    heard_at: float = 0.0
    is_ready: bool = False
    is_hung_up: bool = False
    stopping: bool = False
    killed_for: str | None = None
    farewell: Failed | None = None
    stacks: StackFile | None = None
    retires_for: str | None = None
    is_hurried: bool = False
    has_hook_time: bool = False
    is_charged: bool = False
    killed_as: str = "killed"
    cause: str | None = None

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
    """A numbered place of a role that is to be filled again whenever its process ends.

    `heir` is a process that shall take the place over once it is ready; `leaving` are those that have been
    replaced and have not ended yet. `is_retired`: not to be filled any more.
    """

    role: str
    number: int = 0
    child: Child | None = None
    heir: Child | None = None
    leaving: list[Child] = field(default_factory=list)
    is_retired: bool = False
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

    @property
    def is_vacant(self) -> bool:
        """Whether nobody is there, and nobody on the way."""
        return self.child is None and self.heir is None and not self.is_retired

    def members(self) -> list[Child]:
        """Return all its processes that are not waited for yet."""
        return [child for child in (self.child, self.heir, *self.leaving) if child is not None]

    def filled(self, child: Child) -> None:
        self.child = child
        self.births += 1

    def expects(self, heir: Child) -> None:
        """There is a process that shall take over."""
        self.heir = heir
        self.births += 1

    def handed_over(self) -> None:
        """The heir has the place; who had it leaves."""
        if self.child is not None:
            self.leaving.append(self.child)
        self.child, self.heir = self.heir, None

    def dismissed(self, child: Child) -> None:
        """This process leaves, and nobody has taken over from it."""
        if child in self.leaving:
            return
        if child is self.child:
            self.child = None
        elif child is self.heir:
            self.heir = None
        self.leaving.append(child)

    def became_ready(self) -> None:
        self.was_ever_ready = True
        self.backoff.worked()

    def missed(self, now: float, cause: str) -> float:
        """A process could not be made. Return in how many seconds the next may be."""
        self.last_cause = cause
        delay = self.backoff.died(was_ready=False)
        self.due_at = now + delay
        return delay

    def emptied(self, now: float, cause: str, *, was_ready: bool, child: Child | None = None) -> float:
        """A process is gone. Return in how many seconds the next may be born.

        `child` is who is gone, by default the one that has the place.
        """
        if child is not None and child in self.leaving:
            self.leaving.remove(child)
            return 0.0
        if child is not None and child is self.heir:
            self.heir = None
        else:
            self.child = None
        self.last_cause = cause
        delay = self.backoff.died(was_ready=was_ready)
        self.due_at = now + delay
        return delay


class Slots:
    """All places of the node, in the order in which they are filled."""

    def __init__(self, *, workers: int, apis: int, has_store: bool, has_watcher: bool = False) -> None:
        self.store = Place(STORE) if has_store else None
        self.keeper = Place(KEEPER)
        self.apis = [Place(API, number) for number in range(apis)]
        self.template = Place(TEMPLATE)
        self.watcher = Place(WATCHER) if has_watcher else None
        self.workers = [Place(WORKER, number) for number in range(workers)]
        self._retired: list[Place] = []

    def places(self) -> Iterator[Place]:
        """Yield the places that are to be filled."""
        if self.store is not None:
            yield self.store
        yield self.keeper
        yield from self.apis
        yield self.template
        yield from self.workers
        if self.watcher is not None:
            yield self.watcher

    def resize(self, role: str, number: int) -> list[Place]:
        """Have so many places for workers or api processes; return those that are not to be filled any more.

        Numbers stay: the highest go first, and come back as they were, with who has not left yet.
        """
        places = self.workers if role == WORKER else self.apis
        removed = places[number:]
        del places[number:]
        self._retired = [place for place in self._retired if place.members()]
        for place in removed:
            place.is_retired = True
            self._retired.append(place)
        for next_number in range(len(places), number):
            places.append(self._place(role, next_number))
        return removed

    def _place(self, role: str, number: int) -> Place:
        for place in self._retired:
            if (place.role, place.number) == (role, number):
                self._retired.remove(place)
                place.is_retired = False
                return place
        return Place(role, number)

    def children(self, *roles: str) -> list[Child]:
        """Return the processes that are not waited for yet, of these roles or of all."""
        return [
            child
            for place in (*self.places(), *self._retired)
            if not roles or place.role in roles
            for child in place.members()
        ]

    def by_pid(self, pid: int) -> Child | None:
        return next((child for child in self.children() if child.pid == pid), None)

    def by_incarnation(self, incarnation: str) -> Child | None:
        return next((child for child in self.children() if child.incarnation == incarnation), None)

    def vacant(self, now: float) -> list[Place]:
        """Return the places that wait for a process and may have one now."""
        return [place for place in self.places() if place.is_vacant and place.due_at <= now]

    @property
    def is_complete(self) -> bool:
        """Whether every place has a process that is ready."""
        return all(place.child is not None and place.child.is_ready for place in self.places())


class Cells:
    """The rows of the scoreboard that are free for a role; the lowest is taken first."""

    def __init__(self, number: int) -> None:
        self._free = list(range(number))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int | None:
        """Return a row that nobody writes, None if there is none."""
        return heapq.heappop(self._free) if self._free else None

    def give_back(self, cell: int) -> None:
        """Its writer was waited for."""
        heapq.heappush(self._free, cell)
