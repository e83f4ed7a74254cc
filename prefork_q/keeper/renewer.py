"""The renewer: extends the leases of what the node's living workers hold.

It works from the scoreboard, so a worker whose interpreter is held by a C extension keeps its
leases. What it must not do is keep alive what nobody works on: see `_is_worked_on`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from prefork_q.broker import Broker, Renewal
from prefork_q.events import Events
from prefork_q.ipc import stats
from prefork_q.ipc.scoreboard import Scoreboard, boot_time
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.ipc.stats import Held
from prefork_q.keeper.processes import does_run

BATCH = 500

SILENCE = 15.0
"""Seconds: three times as long as a fetch loop blocks. One that has not turned for longer does not
hand its buffer to its processors either."""

STARTED_AFTER = 1.0
"""Seconds that a task must have run before Redis is told that it was started. Shorter ones are
mostly done before the word could count."""


ASKED = 1_000
"""Cancellations that are kept in mind."""


@dataclass(frozen=True, slots=True)
class Due:
    slot: WorkerSlot
    held: Held
    is_started: bool


class Renewer:
    """Renews a batch a run; ticks at least six times in a lease.

    It also hears of cancellations, at each tick, and has those it may concern renewed early: the answer says
    whether the run that it knows of is to be cancelled.
    """

    name = "renewer"
    needs_redis = True

    def __init__(self, board: Scoreboard, broker: Broker, events: Events, *, lease: float) -> None:
        self._board = board
        self._broker = broker
        self._events = events
        self._lease = lease
        self._tick = min(1.0, lease / 6)
        self._started: set[tuple[str, int]] = set()
        self._told: set[tuple[str, int]] = set()
        self._asked: dict[str, None] = {}
        self._asked_at = 0

    def run(self, now: float) -> float:
        self._hear_of_cancellations()
        due = list(islice(self._due(now), BATCH))
        if not due:
            return now + self._tick
        # Taken before the call: the lease begins when Redis handles it, which is not earlier.
        sent_at = boot_time()
        words = self._broker.renew(
            [Renewal(one.held.id, one.held.token, one.is_started) for one in due], lease=self._lease
        )
        for one, word in zip(due, words, strict=True):
            self._note(one, word, sent_at)
            self._asked.pop(one.held.id, None)
        self._board.keeper.add(stats.RENEWED, len(words) - words.count("stale"))
        return now if len(due) == BATCH else now + self._tick

    def _hear_of_cancellations(self) -> None:
        if not any(slot.is_alive and slot.running() for slot in self._board.workers()):
            return
        for id, at in self._broker.cancellations(self._asked_at):
            # Those of the newest millisecond are seen again at the next tick: there may be more of them.
            self._asked_at = max(self._asked_at, at)
            self._asked[id] = None
        # Most run elsewhere; some wait in a buffer of ours.
        for id in list(islice(self._asked, max(0, len(self._asked) - ASKED))):
            del self._asked[id]

    def _due(self, now: float) -> Iterator[Due]:
        started: set[tuple[str, int]] = set()
        found: list[Due] = []
        for slot in self._board.workers():
            if slot.is_alive and slot.pid:
                found += self._due_of(slot, now, started)
        self._started = started
        self._told &= started
        yield from found

    def _due_of(self, slot: WorkerSlot, now: float, started: set[tuple[str, int]]) -> list[Due]:
        holds = slot.holds()
        if not holds:
            return []
        running = {(entry.id, entry.token): entry for entry in slot.running()}
        is_silent = now - slot.last_beat > SILENCE
        due = []
        for held in holds:
            key = (held.id, held.token)
            run = running.get(key)
            # Once started it stays so: it may have finished, and wait to be committed.
            is_started = run is not None or key in self._started
            if is_started:
                started.add(key)
            is_old = now - max(held.claimed_at, held.renewed_at) > self._lease / 3
            is_news = run is not None and key not in self._told and now - run.started_at > STARTED_AFTER
            is_asked = run is not None and held.id in self._asked
            is_asked = is_asked and not slot.is_cancel_requested(held.index, held.token)
            if not (is_old or is_news or is_asked) or slot.is_lost(held.index, held.token):
                continue
            if is_started or not is_silent:
                due.append(Due(slot, held, is_started))
        return due if due and does_run(slot.pid) else []

    def _note(self, one: Due, word: str, sent_at: float) -> None:
        slot, held = one.slot, one.held
        if word == "stale":
            slot.lost(held.index, held.token)
            self._events.emit("lease_lost", level="debug", id=held.id, token=held.token, worker=slot.place)
            return
        slot.renewed(held.index, held.token, sent_at)
        if one.is_started:
            self._told.add((held.id, held.token))
        if word == "cancel":
            slot.cancel_requested(held.index, held.token)
