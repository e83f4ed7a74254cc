"""Looks at Redis and changes nothing: sums, rates, single tasks, pages.

Every look is one script or one transaction: its numbers belong together, its time is Redis's own, and it
costs the same however many tasks there are (sums: a little for each queue; pages: a bounded number of
entries).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from prefork_q.calls import Calls
from prefork_q.connection import redis
from prefork_q.errors import Invalid
from prefork_q.keys import NAME, NAME_RULE, Keys
from prefork_q.records import pairs, read_record
from prefork_q.states import Status
from prefork_q.task import TaskRecord

RATE_WINDOW = 60
"""Seconds that the rates cover."""
PEEK = 200
"""Entries at the head of a pending list that are looked at, at most, for its oldest task."""
PAGE_LIMIT = 100
SCAN = 500
"""Entries of an index that one call looks at: under a millisecond of Redis's time."""
CALLS = 10
"""Calls that one page makes at most; then it is a short one, and the cursor goes on from there."""
PAGE_BYTES = 1 << 20
NODE_SILENCE = 15.0
"""Seconds without a word after which a node is not counted as live: it speaks every five."""


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """A queue now. `oldest_pending_age` in seconds, None if nothing waits; `submitted` since ever."""

    name: str
    pending: int
    is_paused: bool
    submitted: int
    oldest_pending_age: float | None


@dataclass(frozen=True, slots=True)
class Counts:
    """All sums at one moment. `at` is Redis's clock, seconds since the epoch.

    `totals` count since the namespace began: submitted, completed, failed (attempts), retried, dead,
    cancelled, released, crashes, losses, expired, removed, trimmed, corrupt, strays. Always
    submitted = pending + processing + delayed + succeeded + dead + cancelled + removed, where
    succeeded is `completed`, and dead is the number of the dead now.
    """

    at: float
    processing: int
    delayed: int
    dead: int
    queues: tuple[QueueCounts, ...]
    totals: Mapping[str, int]
    completed_per_minute: int
    failed_per_minute: int

    @property
    def pending(self) -> int:
        return sum(queue.pending for queue in self.queues)

    @property
    def oldest_pending_age(self) -> float | None:
        """The longest that a task has been waiting for a worker, in seconds; None if none waits."""
        ages = [queue.oldest_pending_age for queue in self.queues if queue.oldest_pending_age is not None]
        return max(ages, default=None)


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a page ended: in which index, and after which entry of it."""

    index: str
    queue: str = ""
    at: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """Some tasks; `next` is where to go on, None at the end. A page may be short, or empty, before that."""

    tasks: list[TaskRecord] = field(default_factory=list)
    next: Cursor | None = None


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A live node: how many of its workers are ready, the types and queues that they know, and whether they
    were told to claim nothing."""

    name: str
    host: str
    version: str
    ready: int
    types: tuple[str, ...]
    queues: tuple[str, ...]
    is_quiet: bool


INDEXES: Mapping[Status | None, tuple[str, ...]] = {
    Status.PENDING: ("pending",),
    Status.PROCESSING: ("processing",),
    Status.DELAYED: ("delayed",),
    Status.DEAD: ("dead",),
    Status.SUCCEEDED: ("recent",),
    Status.CANCELLED: ("recent",),
    # In the order of a task's life, so that one that moves on meanwhile is rather seen twice than missed.
    None: ("delayed", "pending", "processing", "dead", "recent"),
}
"""Where the tasks of a status are listed. `recent` has the last 10,000 that ended and are not dead."""


class Inspector:
    """Reads; every method raises `Unavailable` when Redis cannot answer now. Used from any thread."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._calls = Calls(client, keys.root)
        self._root = keys.root

    def ping(self) -> None:
        """Return if Redis answers."""
        self._calls.command("PING")

    def counts(self) -> Counts:
        """Return all sums and rates."""
        now_ms, (processing, delayed, dead), queues, totals, (completed, failed) = self._calls.script(
            "counts", RATE_WINDOW, PEEK
        )
        return Counts(
            at=now_ms / 1000,
            processing=processing,
            delayed=delayed,
            dead=dead,
            queues=tuple(sorted((_queue(entry) for entry in queues), key=lambda queue: queue.name)),
            totals={name.decode(): int(value) for name, value in pairs(totals)},
            completed_per_minute=completed,
            failed_per_minute=failed,
        )

    def get(self, id: str) -> TaskRecord | None:
        """Return a task, None if there is none of this id."""
        entries = self._calls.script("show", id)
        return read_record(entries[0]) if entries else None

    def page(
        self,
        status: Status | None = None,
        *,
        type: str | None = None,
        queue: str | None = None,
        limit: int = PAGE_LIMIT,
        cursor: Cursor | None = None,
    ) -> Page:
        """Return the next tasks of a status (None: any) from where `cursor` says.

        The newest come first, except that of the delayed the next due does, and of the processing the
        one whose lease ends first. `limit` is from 1 to PAGE_LIMIT.

        Raises:
            Invalid: type or queue is no name.
        """
        filters = _filter(type, "type"), _filter(queue, "queue")
        tasks: list[TaskRecord] = []
        place = cursor or self._first(status, queue)
        for _ in range(CALLS):
            if place is None:
                break
            entries, at, after = self._calls.script(
                "page", place.index, place.queue, place.at, place.after,
                limit - len(tasks), SCAN, PAGE_BYTES, status or "", *filters,
            )  # fmt: skip
            tasks += [record for entry in entries if (record := read_record(entry)) is not None]
            if after:
                place = replace(place, at=at.decode(), after=after.decode())
            else:
                place = self._next(status, queue, place)
            # Some tasks are better than more: the caller has something to show.
            if len(tasks) >= limit or (tasks and after):
                break
        return Page(tasks, place)

    def dead_ids(
        self,
        *,
        type: str | None = None,
        before: float | None = None,
        limit: int = SCAN,
        cursor: Cursor | None = None,
    ) -> tuple[list[str], Cursor | None]:
        """Return the next ids of the dead, the newest first, and where to go on (None: that was all).

        `before` is in seconds since the epoch; at most SCAN ids are given, and maybe none.

        Raises:
            Invalid: type is no name.
        """
        wanted = _filter(type, "type")
        place = cursor or Cursor("dead", at="" if before is None else str(round(before * 1000)))
        entries, at, after = self._calls.script(
            "page", place.index, "", place.at, place.after, min(limit, SCAN), SCAN, 0, "", wanted, ""
        )
        end = Cursor("dead", at=at.decode(), after=after.decode()) if after else None
        return [id.decode() for (id,) in entries], end

    def ahead(self, id: str, queue: str, searched: int) -> int | None:
        """Return how many entries of a queue are claimed before this pending task.

        None if it is not among the next `searched` ones. Cancelled tasks may be counted too, until
        they are dropped from the list.
        """
        pending = f"{self._root}pending:{queue}"
        length, place = self._calls.commands(
            ("LLEN", pending), ("LPOS", pending, id, "RANK", -1, "MAXLEN", searched)
        )
        return None if place is None else int(length) - 1 - int(place)

    def layout(self) -> str | None:
        """Return the version of the layout that is stored, None if no node has been here."""
        stored = self._calls.command("GET", f"{self._root}layout")
        return None if stored is None else bytes(stored).decode("utf-8", "replace")

    def nodes(self) -> list[NodeInfo]:
        """Return the nodes that have said within NODE_SILENCE that they live."""
        (seconds, _), said = self._calls.commands(("TIME",), ("HGETALL", f"{self._root}nodes"))
        flat = [part for pair in said.items() for part in pair] if isinstance(said, dict) else said
        nodes = []
        for name, text in pairs(flat):
            at_ms, _, info = text.partition(b" ")
            if abs(int(seconds) - int(at_ms) / 1000) <= NODE_SILENCE:
                nodes.append(_node(name.decode(), orjson.loads(info)))
        return sorted(nodes, key=lambda node: node.name)

    def _first(self, status: Status | None, queue: str | None) -> Cursor | None:
        return self._enter(INDEXES[status], queue)

    def _next(self, status: Status | None, queue: str | None, place: Cursor) -> Cursor | None:
        if place.index == "pending" and queue is None:
            later = [name for name in self._queues() if name > place.queue]
            if later:
                return Cursor("pending", later[0])
        indexes = INDEXES[status]
        return self._enter(indexes[indexes.index(place.index) + 1 :], queue)

    def _enter(self, indexes: tuple[str, ...], queue: str | None) -> Cursor | None:
        for index in indexes:
            if index != "pending":
                return Cursor(index)
            names = self._queues() if queue is None else [queue]
            if names:
                return Cursor("pending", names[0])
        return None

    def _queues(self) -> list[str]:
        names = self._calls.command("HKEYS", self._root + "queues")
        return sorted(name.decode("utf-8", "replace") for name in names)


def _filter(name: str | None, option: str) -> str:
    """Return a type or a queue as the script takes it. There "" is any, which no caller shall get by ""."""
    if name is None:
        return ""
    if not NAME.fullmatch(name):
        raise Invalid(f"{option}: {NAME_RULE}", pointer=f"/{option}")
    return name


def _node(name: str, info: Mapping[str, Any]) -> NodeInfo:
    return NodeInfo(
        name,
        host=str(info.get("host", "")),
        version=str(info.get("version", "")),
        ready=int(info.get("ready", 0)),
        types=tuple(info.get("types", ())),
        queues=tuple(info.get("queues", ())),
        is_quiet=bool(info.get("quiet", False)),
    )


def _queue(entry: list[Any]) -> QueueCounts:
    name, pending, paused, submitted, age_ms = entry
    return QueueCounts(
        name.decode("utf-8", "replace"),
        pending,
        bool(paused),
        submitted,
        None if age_ms < 0 else age_ms / 1000,
    )
