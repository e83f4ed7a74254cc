"""From outcomes to what Redis is told, and from its answer to counters and log lines. Main thread only.

Outcomes that are ready together travel in one call. An outcome is counted and logged when its
commit has been answered, since only then is it one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prefork_q.broker import Settlement
from prefork_q.events import Events
from prefork_q.events import Outcome as Word
from prefork_q.ipc import stats
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.worker.held import Held, Outcome
from prefork_q.worker.pace import Paces

VERBS: Final = {"succeeded": "complete", "retrying": "fail", "dead": "fail", "released": "release"}
"""By outcome."""
TURNED: Final[dict[bytes, Word]] = {b"cancelled": "cancelled", b"dead": "dead"}
"""What Redis answers when something else became of a task than the worker said."""


def settlement(outcome: Outcome) -> Settlement:
    """Return what Redis is told of an outcome."""
    held, name, ran, text, delay, _, _ = outcome
    lease = held.lease
    after: int | str = "" if delay is None else int(delay * 1_000)
    return Settlement(VERBS[name], lease.id, lease.token, int(ran * 1_000), text, after)


class Ledger:
    """Books what became of attempts: the slot's counters, the paces, a line each in the log."""

    def __init__(self, slot: WorkerSlot, paces: Paces, events: Events) -> None:
        self._slot = slot
        self._paces = paces
        self._events = events

    def book(self, batch: Sequence[Outcome], words: Sequence[bytes], now: float) -> None:
        """Book a commit that was answered at boot time `now` with a word for each outcome."""
        slot, line = self._slot, self._events.attempt_line
        lines: list[bytes] = []
        completed: dict[int, int] = {}
        ran: dict[bytes, tuple[float, int]] = {}
        failed = 0
        for outcome, word in zip(batch, words, strict=True):
            held, name, seconds, _, _, error_type, error_message = outcome
            lease, route = held.lease, held.route
            if word == b"stale":
                self._refused(held)
                continue
            became: Word = TURNED.get(word, name)
            index = stats.MAX_TYPES - 1 if route is None else route.number
            if name == "released":
                slot.add(stats.RELEASED)
            else:
                slot.observe_duration(index, seconds)
                total, n = ran.get(lease.type, (0.0, 0))
                ran[lease.type] = (total + seconds, n + 1)
                if name == "succeeded":
                    completed[index] = completed.get(index, 0) + 1
                else:
                    failed += 1
                    slot.add_for(index, stats.FAILED)
            if became == "dead":
                slot.add_for(index, stats.DEAD)
            elif became == "retrying":
                slot.add_for(index, stats.RETRIED)
            elif became == "cancelled":
                slot.add(stats.CANCELLED)
            lines.append(
                line(
                    lease.id.decode(), name_of(held), lease.queue.decode(), lease.attempt, became, seconds,
                    error_type, error_message,
                )
            )  # fmt: skip
        for index, n in completed.items():
            slot.add_for(index, stats.COMPLETED, n)
        for type_, (total, n) in ran.items():
            self._paces.learn(type_, total / n, n)
        if completed or failed:
            slot.tick(now, sum(completed.values()), failed)
        self._events.lines(lines)

    def unfinished(self, held: Held, now: float) -> None:
        """Log that a running task is given back because its time to stop has come."""
        lease = held.lease
        ran = now - held.arrived_at
        line = self._events.attempt_line(
            lease.id.decode(), name_of(held), lease.queue.decode(), lease.attempt, "released", ran
        )
        self._events.lines([line])

    def _refused(self, held: Held) -> None:
        lease = held.lease
        self._slot.add(stats.STALE)
        self._events.emit(
            "commit_refused",
            level="warning",
            id=lease.id.decode(),
            type=name_of(held),
            attempt=lease.attempt,
            cause="the lease is another's, or nobody's",
        )


def name_of(held: Held) -> str:
    """Return the name of a task's type."""
    return held.lease.type.decode("utf-8", "replace") if held.route is None else held.route.name
