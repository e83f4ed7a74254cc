"""From outcomes to what Redis is told, and from its answer to counters and log lines. Main thread only.

Outcomes that are ready together travel in one call. An outcome is counted and logged when its
commit has been answered, since only then is it one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from prefork_q.events import Events
from prefork_q.events import Outcome as Word
from prefork_q.ipc import stats
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.leases import SettlementGroup
from prefork_q.worker.held import Held, Lot, Outcome, OutcomeName

VERBS: Final = {"succeeded": "complete", "retrying": "fail", "dead": "fail", "released": "release"}
"""By outcome."""
TURNED: Final[dict[bytes, Word]] = {b"cancelled": "cancelled", b"dead": "dead"}
"""What Redis answers when something else became of a task than the worker said."""
STALE: Final = b"stale"


class Run(NamedTuple):
    """Neighbours of a batch that are of one lot and have ended alike."""

    name: OutcomeName
    lot: Lot
    delay: float | None
    outcomes: list[Outcome]

    def settlements(self) -> SettlementGroup:
        """Return what Redis is told of them."""
        return SettlementGroup(
            VERBS[self.name],
            self.lot.token,
            "" if self.delay is None else int(self.delay * 1_000),
            [outcome.held.id for outcome in self.outcomes],
            [int(outcome.ran * 1_000) for outcome in self.outcomes],
            [outcome.text for outcome in self.outcomes],
        )


def runs(batch: Sequence[Outcome]) -> list[Run]:
    """Return a batch as runs, in its order."""
    found: list[Run] = []
    lot: Lot | None = None
    name: OutcomeName | None = None
    delay: float | None = None
    for outcome in batch:
        if outcome.held.lot is not lot or outcome.name != name or outcome.delay != delay:
            run = Run(outcome.name, outcome.held.lot, outcome.delay, [])
            name, lot, delay, outcomes = run
            found.append(run)
        outcomes.append(outcome)
    return found


def said_again(batch: Sequence[Run], words: Sequence[bytes]) -> list[bytes]:
    """Return the words for a commit that had been carried out already, when only its answer was lost.

    What was given back or failed then may be another's by now: that is no refusal of what we said.
    """
    return [
        b"ok" if word == STALE and name != "succeeded" else word
        for name, word in zip((run.name for run in batch for _ in run.outcomes), words, strict=True)
    ]


class Ledger:
    """Books what became of attempts: the slot's counters, a line each in the log."""

    def __init__(self, slot: WorkerSlot, events: Events) -> None:
        self._slot = slot
        self._events = events

    def book(self, batch: Sequence[Run], words: Sequence[bytes], now: float) -> None:
        """Book a commit that was answered at boot time `now` with a word for each outcome."""
        lines: list[bytes] = []
        completed = failed = at = 0
        for run in batch:
            said = words[at : at + len(run.outcomes)]
            at += len(run.outcomes)
            accepted = self._accepted(run.outcomes, said) if STALE in said else run.outcomes
            if run.name != "succeeded":
                for outcome, word in zip(run.outcomes, said, strict=True):
                    if word != STALE:
                        lines.append(self._ended(outcome, TURNED.get(word, run.name)))
                failed += len(accepted) if run.name != "released" else 0
            elif accepted:
                lines += self._succeeded(run.lot, accepted)
                completed += len(accepted)
        if completed or failed:
            self._slot.tick(now, completed, failed)
        self._events.lines(lines)

    def _accepted(self, outcomes: Sequence[Outcome], words: Sequence[bytes]) -> list[Outcome]:
        """Return those that were not refused; tell of the others."""
        accepted: list[Outcome] = []
        for outcome, word in zip(outcomes, words, strict=True):
            if word == STALE:
                self._refused(outcome.held)
            else:
                accepted.append(outcome)
        return accepted

    def _succeeded(self, lot: Lot, outcomes: Sequence[Outcome]) -> list[bytes]:
        """Count tasks of one lot that have succeeded; return their lines."""
        number = _number(lot)
        self._slot.add_for(number, stats.COMPLETED, len(outcomes))
        self._slot.observe_durations(number, [outcome.ran for outcome in outcomes])
        ended = [(outcome.held.id, outcome.ran) for outcome in outcomes]
        return self._events.attempt_lines(lot.type_name, lot.queue.decode(), lot.attempt, "succeeded", ended)

    def _ended(self, outcome: Outcome, became: Word) -> bytes:
        """Count an attempt that has not succeeded; return its line."""
        slot, held = self._slot, outcome.held
        number = _number(held.lot)
        if outcome.name == "released":
            slot.add(stats.RELEASED)
        else:
            slot.observe_durations(number, [outcome.ran])
            slot.add_for(number, stats.FAILED)
        if became == "dead":
            slot.add_for(number, stats.DEAD)
        elif became == "retrying":
            slot.add_for(number, stats.RETRIED)
        elif became == "cancelled":
            slot.add(stats.CANCELLED)
        return self._line(held, became, outcome.ran, outcome.error_type, outcome.error_message)

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
