"""From outcomes to what Redis is told, and from its answer to counters and log lines. Main thread only.

Outcomes that are ready together travel in one call. An outcome is counted and logged when its
commit has been answered, since only then is it one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from prefork_q.broker import Settlement
from prefork_q.events import Events
from prefork_q.ipc import stats
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.worker.held import Held, Outcome
from prefork_q.worker.pace import Paces

MAX_OUTCOMES: Final = 256
"""Outcomes in one call."""
MAX_BYTES: Final = 1 << 20
"""Bytes of results and errors in one call; a single one may be larger."""

VERBS: Final = {"succeeded": "complete", "retrying": "fail", "dead": "fail", "released": "release"}


def take_batch(outbox: deque[Outcome]) -> list[Outcome]:
    """Take from the outbox what goes into one call."""
    batch: list[Outcome] = []
    size = 0
    while outbox and len(batch) < MAX_OUTCOMES:
        size += len(outbox[0].text)
        if batch and size > MAX_BYTES:
            break
        batch.append(outbox.popleft())
    return batch


def settlement(outcome: Outcome) -> Settlement:
    """Return what Redis is told of an outcome."""
    lease, delay = outcome.held.lease, outcome.delay
    return Settlement(
        VERBS[outcome.name],
        lease.id,
        lease.token,
        int(outcome.ran * 1_000),
        outcome.text,
        "" if delay is None else int(delay * 1_000),
    )


class Ledger:
    """Books what became of attempts: the slot's counters, the paces, a line each in the log."""

    def __init__(self, slot: WorkerSlot, paces: Paces, events: Events) -> None:
        self._slot = slot
        self._paces = paces
        self._events = events

    def book(self, batch: Sequence[Outcome], words: Sequence[bytes], now: float) -> None:
        """Book a commit that was answered at boot time `now` with a word for each outcome."""
        slot = self._slot
        lines: list[bytes] = []
        completed: dict[int, int] = {}
        ran: dict[bytes, tuple[float, int]] = {}
        failed = 0
        for outcome, word in zip(batch, words, strict=True):
            held, name = outcome.held, outcome.name
            lease, route = held.lease, held.route
            index = stats.MAX_TYPES - 1 if route is None else route.number
            if word == b"stale":
                self._refused(held)
                continue
            if name == "released":
                slot.add(stats.RELEASED)
            else:
                slot.observe_duration(index, outcome.ran)
                seconds, n = ran.get(lease.type, (0.0, 0))
                ran[lease.type] = (seconds + outcome.ran, n + 1)
                if name == "succeeded":
                    completed[index] = completed.get(index, 0) + 1
                else:
                    failed += 1
                    slot.add_for(index, stats.FAILED)
                    slot.add_for(index, stats.DEAD if name == "dead" else stats.RETRIED)
            lines.append(
                self._events.attempt_line(
                    lease.id.decode(),
                    lease.type.decode("utf-8", "replace") if route is None else route.name,
                    lease.queue.decode(),
                    lease.attempt,
                    "cancelled" if word == b"cancelled" else "dead" if word == b"dead" else name,
                    outcome.ran,
                    outcome.error_type,
                    outcome.error_message,
                )
            )
        for index, n in completed.items():
            slot.add_for(index, stats.COMPLETED, n)
        for type_, (seconds, n) in ran.items():
            self._paces.learn(type_, seconds / n, n)
        if completed or failed:
            slot.tick(now, sum(completed.values()), failed)
        self._events.lines(lines)

    def unfinished(self, held: Held, ran: float) -> None:
        """Log that a running task is given back because its time to stop has come."""
        lease = held.lease
        self._events.lines(
            [
                self._events.attempt_line(
                    lease.id.decode(),
                    lease.type.decode("utf-8", "replace"),
                    lease.queue.decode(),
                    lease.attempt,
                    "released",
                    ran,
                )
            ]
        )

    def _refused(self, held: Held) -> None:
        lease = held.lease
        self._slot.add(stats.STALE)
        self._events.emit(
            "commit_refused",
            level="warning",
            id=lease.id.decode(),
            type=lease.type.decode("utf-8", "replace"),
            attempt=lease.attempt,
            cause="the lease is another's, or nobody's",
        )
