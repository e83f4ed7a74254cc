"""From outcomes to what Redis is told, and from its answer to counters and log lines. Main thread only.

Outcomes that are ready together travel in one call. An outcome is counted and logged when its
commit has been answered, since only then is it one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prefork_q.broker import AnySettlement
from prefork_q.events import Events
from prefork_q.events import Outcome as Word
from prefork_q.ipc import stats
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.worker.held import Held, Lot, Outcome
from prefork_q.worker.pace import Paces

VERBS: Final = {"succeeded": "complete", "retrying": "fail", "dead": "fail", "released": "release"}
"""By outcome."""
TURNED: Final[dict[bytes, Word]] = {b"cancelled": "cancelled", b"dead": "dead"}
"""What Redis answers when something else became of a task than the worker said."""


def settlement(outcome: Outcome) -> AnySettlement:
    """Return what Redis is told of an outcome."""
    held, delay = outcome.held, outcome.delay
    after: int | str = "" if delay is None else int(delay * 1_000)
    return VERBS[outcome.name], held.id, held.lot.token, int(outcome.ran * 1_000), outcome.text, after


class Ledger:
    """Books what became of attempts: the slot's counters, the paces, a line each in the log."""

    def __init__(self, slot: WorkerSlot, paces: Paces, events: Events) -> None:
        self._slot = slot
        self._paces = paces
        self._events = events

    def book(self, batch: Sequence[Outcome], words: Sequence[bytes], now: float) -> None:
        """Book a commit that was answered at boot time `now` with a word for each outcome.

        What succeeded is booked together as it was claimed, everything else one by one.
        """
        succeeded: dict[Lot, list[Outcome]] = {}
        lines: list[bytes] = []
        completed = failed = 0
        for outcome, word in zip(batch, words, strict=True):
            held = outcome.held
            if word == b"stale":
                self._refused(held)
            elif outcome.name == "succeeded":
                lot = held.lot
                if lot in succeeded:
                    succeeded[lot].append(outcome)
                else:
                    succeeded[lot] = [outcome]
            else:
                became: Word = TURNED.get(word, outcome.name)
                if outcome.name != "released":
                    failed += 1
                self._count(outcome, became)
                lines.append(self._line(held, became, outcome.ran, outcome.error_type, outcome.error_message))
        for lot, outcomes in succeeded.items():
            completed += len(outcomes)
            lines += self._succeeded(lot, outcomes)
        if completed or failed:
            self._slot.tick(now, completed, failed)
        self._events.lines(lines)

    def unfinished(self, held: Held, now: float) -> None:
        """Log that a running task is given back because its time to stop has come."""
        self._events.lines([self._line(held, "released", now - held.lot.arrived_at)])

    def _succeeded(self, lot: Lot, outcomes: Sequence[Outcome]) -> list[bytes]:
        """Count tasks of one lot that have succeeded; return their lines."""
        self._slot.add_for(_number(lot), stats.COMPLETED, len(outcomes))
        self._ran(lot, [outcome.ran for outcome in outcomes])
        ended = [(outcome.held.id, outcome.ran) for outcome in outcomes]
        return self._events.attempt_lines(lot.type_name, lot.queue.decode(), lot.attempt, "succeeded", ended)

    def _count(self, outcome: Outcome, became: Word) -> None:
        """Count an attempt that has not succeeded."""
        slot, lot = self._slot, outcome.held.lot
        number = _number(lot)
        if outcome.name == "released":
            slot.add(stats.RELEASED)
        else:
            self._ran(lot, [outcome.ran])
            slot.add_for(number, stats.FAILED)
        if became == "dead":
            slot.add_for(number, stats.DEAD)
        elif became == "retrying":
            slot.add_for(number, stats.RETRIED)
        elif became == "cancelled":
            slot.add(stats.CANCELLED)

    def _ran(self, lot: Lot, seconds: Sequence[float]) -> None:
        """Note how long attempts at tasks of this lot took."""
        self._slot.observe_durations(_number(lot), seconds)
        self._paces.learn(lot.type, sum(seconds) / len(seconds), len(seconds))

    def _line(
        self, held: Held, became: Word, ran: float, error_type: str | None = None, message: str | None = None
    ) -> bytes:
        lot = held.lot
        return self._events.attempt_line(
            held.id.decode(), lot.type_name, lot.queue.decode(), lot.attempt, became, ran, error_type, message
        )

    def _refused(self, held: Held) -> None:
        self._slot.add(stats.STALE)
        self._events.emit(
            "commit_refused",
            level="warning",
            id=held.id.decode(),
            type=held.lot.type_name,
            attempt=held.lot.attempt,
            cause="the lease is another's, or nobody's",
        )


def _number(lot: Lot) -> int:
    """Return the scoreboard's index of the type."""
    return stats.MAX_TYPES - 1 if lot.route is None else lot.route.number
