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
    held, delay = outcome.held, outcome.delay
    after: int | str = "" if delay is None else int(delay * 1_000)
    return Settlement(VERBS[outcome.name], held.id, held.token, int(outcome.ran * 1_000), outcome.text, after)


class Ledger:
    """Books what became of attempts: the slot's counters, the paces, a line each in the log."""

    def __init__(self, slot: WorkerSlot, paces: Paces, events: Events) -> None:
        self._slot = slot
        self._paces = paces
        self._events = events

    def book(self, batch: Sequence[Outcome], words: Sequence[bytes], now: float) -> None:
        """Book a commit that was answered at boot time `now` with a word for each outcome.

        What succeeded is booked together, as far as it is alike; everything else one by one.
        """
        alike: dict[tuple[bytes, bytes, int], list[Outcome]] = {}
        lines: list[bytes] = []
        completed = failed = 0
        for outcome, word in zip(batch, words, strict=True):
            held = outcome.held
            if word == b"stale":
                self._refused(held)
            elif outcome.name == "succeeded":
                kind = (held.type, held.queue, held.attempt)
                if kind in alike:
                    alike[kind].append(outcome)
                else:
                    alike[kind] = [outcome]
            else:
                became: Word = TURNED.get(word, outcome.name)
                if outcome.name != "released":
                    failed += 1
                self._count(outcome, became)
                lines.append(self._line(held, became, outcome.ran, outcome.error_type, outcome.error_message))
        for outcomes in alike.values():
            completed += len(outcomes)
            lines += self._succeeded(outcomes)
        if completed or failed:
            self._slot.tick(now, completed, failed)
        self._events.lines(lines)

    def unfinished(self, held: Held, now: float) -> None:
        """Log that a running task is given back because its time to stop has come."""
        self._events.lines([self._line(held, "released", now - held.arrived_at)])

    def _succeeded(self, outcomes: Sequence[Outcome]) -> list[bytes]:
        """Count tasks that have succeeded and are alike in type, queue and attempt; return their lines."""
        held = outcomes[0].held
        number = _number(held)
        self._slot.add_for(number, stats.COMPLETED, len(outcomes))
        self._ran(held, [outcome.ran for outcome in outcomes])
        ended = [(outcome.held.id, outcome.ran) for outcome in outcomes]
        return self._events.attempt_lines(
            held.type_name, held.queue.decode(), held.attempt, "succeeded", ended
        )

    def _count(self, outcome: Outcome, became: Word) -> None:
        """Count an attempt that has not succeeded."""
        slot, held = self._slot, outcome.held
        number = _number(held)
        if outcome.name == "released":
            slot.add(stats.RELEASED)
        else:
            self._ran(held, [outcome.ran])
            slot.add_for(number, stats.FAILED)
        if became == "dead":
            slot.add_for(number, stats.DEAD)
        elif became == "retrying":
            slot.add_for(number, stats.RETRIED)
        elif became == "cancelled":
            slot.add(stats.CANCELLED)

    def _ran(self, held: Held, seconds: Sequence[float]) -> None:
        """Note how long attempts at tasks of this type took."""
        self._slot.observe_durations(_number(held), seconds)
        self._paces.learn(held.type, sum(seconds) / len(seconds), len(seconds))

    def _line(
        self, held: Held, became: Word, ran: float, error_type: str | None = None, message: str | None = None
    ) -> bytes:
        return self._events.attempt_line(
            held.id.decode(), held.type_name, held.queue.decode(), held.attempt, became, ran, error_type,
            message,
        )  # fmt: skip

    def _refused(self, held: Held) -> None:
        self._slot.add(stats.STALE)
        self._events.emit(
            "commit_refused",
            level="warning",
            id=held.id.decode(),
            type=held.type_name,
            attempt=held.attempt,
            cause="the lease is another's, or nobody's",
        )


def _number(held: Held) -> int:
    """Return the scoreboard's index of a task's type."""
    return stats.MAX_TYPES - 1 if held.route is None else held.route.number
